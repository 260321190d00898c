"""What attention costs with and without being measured: one registry of cases, one runner, one kind of result.

A case measures several variants of one thing (torch's attention, headwise's kernels, other projects' ways to the same
numbers) at one or more points (sizes). Variants take turns (A, B, C, C, B, A, ...), so that whatever else the machine
does meets all of them alike; ratios are taken within a turn. Every sample is kept.

A result is one JSON file (`results.Result`), schema 1:

    schema      1
    case        name of the case; `level` ("attention", "model", "length") and `about` say what it measures
    baseline    the variant that ratios are taken to
    variants    name -> what it is, in a line
    turns       samples of each variant at each point, when nothing stops the run
    planned     points of the case
    complete    whether every point has all its turns; false after an interruption
    machine     processor, cores, threads, memory, instruction set, the native kernel's level, system
    versions    python, torch, transformers, headwise, and peers; null where one is not installed
    points      a list, a point each:
        name, parameters    such as tokens, head_dim, heads, kind; or model, batch, tokens
        samples             variant -> a list of samples in the order of the turns:
                            seconds; extra_bytes, the peak of resident memory above what was held before the run
                            (null where the system does not say: Linux does); html_bytes where a page is made;
                            runs, where a sample is a few runs: seconds of each, of which `seconds` is the median
                            (memory is that of the first)
        not_run             variant -> why it has no samples, or not all
        median_seconds, median_extra_bytes      variant -> number
        to_baseline         variant -> median over turns of its seconds / the baseline's in the same turn
    summary     kind -> variant -> geometric_mean and largest of the points' ratios, and how many they are

Medians, ratios and the summary are derived: reading a file takes the samples and derives them again.

Where a case runs each sample in a fresh process (models and lengths), extra_bytes is exact. In one process (attention)
memory that the allocator already holds is used again without being seen, so it is a lower bound.
"""
