"""The format `liftpy`: what Spark asks of it, and who answers. What only some queries need is imported for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from liftpy_spark.errors import plain_errors
from liftpy_spark.options.names import CONNECTION_ALIASES, SOURCE_OPTIONS
from liftpy_spark.options.source import SourceOptions
from liftpy_spark.options.values import Options
from liftpy_spark.reading.schema import source_schema
from liftpy_spark.versions import check_versions

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

__all__ = ["LiftpyDataSource"]


class LiftpyDataSource(DataSource):
    """The data source `liftpy` as Spark sees it: makes readers and writers.

    Args:
        options: Options, as the user gave them, names in lower case.

    Raises:
        VersionError: Spark or pandas is installed in a version that does not work.
    """

    def __init__(self, options: dict[str, str]) -> None:
        with plain_errors():
            check_versions()
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """What stands in `format(...)`."""
        return "liftpy"

    def schema(self) -> StructType:
        """The columns, where the user names none.

        Raises:
            OptionError: an option is unknown.
        """
        with plain_errors():
            options = Options(self.options, SOURCE_OPTIONS, CONNECTION_ALIASES)
            return source_schema(options.boolean("includeHeaders", False))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query.

        Raises:
            OptionError, SchemaError: an option or the schema means nothing.
        """
        from liftpy_spark.source.batch_reader import LiftpyReader  # noqa: PLC0415 (see the module)

        with plain_errors():
            return LiftpyReader(SourceOptions.read(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (the name is of Spark)
        """Return the reader of a streaming query. Errors in options or schema are raised when it is used."""
        from liftpy_spark.source.stream_reader import LiftpyStreamReader  # noqa: PLC0415 (see the module)

        return LiftpyStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 (Spark's signature)
        """Return the writer of a batch query.

        Raises:
            LiftError: the DataFrame can not be written as the options say.
        """
        from liftpy_spark.sink.writer import LiftpyWriter  # noqa: PLC0415 (see the module)

        return LiftpyWriter(self.options, schema, overwrite)

    def streamWriter(  # noqa: N802 (Spark's name)
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 (Spark's signature)
    ) -> DataSourceStreamWriter:
        """Return the writer of a streaming query's micro-batches.

        Raises:
            LiftError: the DataFrame can not be written as the options say.
        """
        from liftpy_spark.sink.stream_writer import LiftpyStreamWriter  # noqa: PLC0415 (see the module)

        return LiftpyStreamWriter(self.options, schema, overwrite)
