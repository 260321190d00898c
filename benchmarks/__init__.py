"""The project's own benchmarks: `python -m benchmarks`. Registry and runner are headwise's (`headwise.benchmarks`)."""
