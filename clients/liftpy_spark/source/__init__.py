"""The source: plans batches and micro-batches on the driver, and answers to Spark for the format `liftpy`."""
