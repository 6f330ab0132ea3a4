"""Options that several commands share, and get as one value."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["gathered"]


def gathered(
    name: str, options: Sequence[inspect.Parameter], gather: Callable[[dict[str, Any]], Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command options in place of one of its parameters. They are listed before its last one, --json.

    Args:
        name: The parameter.
        options: Parameters with annotations, as typer reads them.
        gather: Makes the value of the parameter from those of the options, by name.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def called(**arguments: Any) -> None:
            given = {each.name: arguments.pop(each.name) for each in options}
            command(**arguments, **{name: gather(given)})

        hints = get_type_hints(command, include_extras=True)
        own = [
            each.replace(annotation=hints[each.name], kind=inspect.Parameter.KEYWORD_ONLY)
            for each in inspect.signature(command).parameters.values()
            if each.name != name
        ]
        parameters = [*own[:-1], *options, own[-1]]
        called.__doc__, called.__name__ = command.__doc__, command.__name__
        called.__annotations__ = {each.name: each.annotation for each in parameters}
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return called

    return decorate
