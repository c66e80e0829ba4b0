"""Thresholds of the phase methods, each with its unit and its evidence."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Thresholds that decide phases; "chosen" where no measurement or paper gives the value.

    ``benchmarks/truth.py``, ``benchmarks/repeatability.py`` and ``tests/test_scenarios.py`` measure what all of them
    yield together, on synthetic runs, on repeated runs of ten programs, and in twelve scenarios with known phases.
    """

    # steps that no window traced in full, and confidence (assign)
    candidate_steps: int = 8  # full steps on each side that a step may take its label from; chosen
    equal_time_ratio: float = 1.1  # of step times that count as equal; chosen
    outlier_time_ratio: int = 5  # by the median of the phase; chosen: of short steps many take as much
    outlier_excess_ps: int = 20_000_000_000  # beyond that median; several time slices of a busy machine
    confidence_draws: int = 5  # parts of the run that are grouped anew; chosen
    confidence_part: float = 0.8  # share of the full steps in a part; chosen
    confidence_most_steps: int = 1000  # in a part; chosen: bounds the time
    confidence_fewest_steps: int = 3  # of a run whose phases have a confidence; chosen
    confidence_fewest_of_phase: int = 10  # steps of a phase in a part of a long run; below, it is unknown; chosen
    confidence_outlier_share: float = 0.01  # of a part; fewer outliers are left out; chosen
    confidence_zero_index: float = 0.6  # adjusted Rand index of confidence 0: that of 0.5 is 0.8 (test_confidence.py)

    # paces of one kind of steps, and clusters that alternate (paces, dbscan)
    pace_ratio: float = 1.5  # of the median exclusive times of two paces; chosen
    pace_fewest_steps: int = 20  # of a stretch with a pace; chosen
    pace_time_share: float = 0.05  # of the time of its kind that a stretch with a pace takes; chosen
    shortest_compilation_ps: int = 100_000_000_000  # that marks another pace; chosen: helpers take less
    alternating_fewest_steps: int = 5  # of a cluster; chosen
    alternating_time_ratio: float = 1.4  # of median step times; chosen
    alternating_explained: float = 0.6  # of the logarithm of that ratio, by the medians of operations; chosen
    alternating_changes: float = 0.5  # from cluster to cluster, by those of a random order; chosen
    alternating_most_steps: int = 200  # of a cluster that are read; chosen: bounds the time
    alternating_range_ratio: float = 1.2  # of the ends of a range of eps with these clusters; chosen

    # operations that a profiler may not have recorded (recorded)
    evidence: float = 0.02  # share of the time of a side with which operations that come and go count; chosen
    skippable_evidence: float = 0.1  # the same of operations that a profiler may skip; chosen
    skippable_event_ps: int = 10_000_000  # median event: three times the 8,000 cycles of TensorFlow's tracer at 2.4 GHz
    presence_correlation: float = 0.9  # from which two operations come and go together; chosen
    most_patterns: int = 512  # sets of steps that are correlated, those of most time; chosen: bounds memory

    # feature space (features)
    most_components: int = 100  # the paper's "at most 100 distinct operations" (IV.A)
    most_columns: int = 512  # of a block, those of the largest variance; chosen: bounds the time
    variance_kept: float = 0.99  # share, by the components; chosen: a rare phase has little of the variance
    least_block_scale: float = 0.1  # a block that varies by less than 10 % is not scaled up to the others; chosen

    # similar steps merged (micro_clusters)
    most_micro_clusters: int = 3000  # points that a method works on; chosen: their distances take 72 MB
    most_variance_lost: float = 0.1  # share, by merging; chosen
    seeds: int = 1500  # of micro-clusters; chosen
    seed_rounds: int = 5  # k-means|| needs about five (Bahmani et al. 2012)
    seed_columns: int = 32  # that decide which seed is the nearest; chosen: bounds the time

    # DBSCAN (dbscan, dbscan_eps)
    flat_outliers: float = 0.02  # rise, as a share of the steps, below which the outlier curve has no elbow; chosen
    elbow_outliers: float = 0.005  # share of the steps that an elbow of the default sweep may make outliers; chosen
    equal_distance: float = 0.2  # in the default space, of equal steps: 2 % of their time; chosen
    clustered_share: float = 0.9  # of the steps that must be in a cluster; chosen
    gap_ratio: float = 1.5  # of a gap, by core distance of a cluster of its own; chosen: chance cuts seldom reach it
    gap_ratio_1d: float = 3.0  # in one dimension, where chance makes wide gaps; chosen
    stable_range_ratio: float = 2.1  # range with the same clusters: one phase under load reached 1.7, three 2.7
    usable_range_ratio: float = 1.2  # smallest, of the ends of a range of distances; chosen
    single_stable_steps: int = 20  # one cluster is stable over 1 + 20 / steps: few steps have gaps by chance; chosen
    single_reach_ratio: float = 2.0  # eps by the core distance of a single cluster, without outliers; chosen

    # HDBSCAN (hdbscan)
    hdbscan_most_steps: int = 10_000  # that are clustered; chosen: bounds the time
    hdbscan_persistence: float = 1.5  # ratio of distances over which a phase persists; chosen
    hdbscan_outlier_ratio: float = 10.0  # distance to the neighbours by that typical of the phase; chosen

    # k-means (kmeans)
    kmeans_starts: int = 10  # for each k; chosen, as n_init of scikit-learn before 1.4
    kmeans_moves: int = 2  # starts from a neighbouring k; chosen
    kmeans_columns: int = 20  # of the starts: k - 1 principal components span the centres (Ding and He 2004)
    kmeans_least_error: float = 1e-3  # share of the error at k = 1, below which there is no structure; chosen
    kmeans_gap_ratio: float = 2.0  # by standard deviations: one normal cluster cut in two has 1.3, a uniform one 1.7
    kmeans_touching: int = 3  # consecutive k without separate phases that end the search; chosen
    bic_share: float = 0.9  # of the criterion's range that the smallest k must reach (SimPoint, Sherwood et al. 2002)

    # online scans (ols, ols_plus, kernels)
    most_phases: int = 256  # that an online scan keeps; chosen: bounds memory
    ols_thresholds: int = 1000  # of the sweep above 0; the slider has hundredths
    ols_plus_stretches: int = 2048  # of equal steps that the sweep reads; chosen: bounds the time
    scatter_steps: int = 10  # up to which a phase's own scatter is not used; chosen
    scatter_ratio: float = 8.0  # distance of a step from its phase by the mean of its steps; chosen
    least_tolerance: float = 0.25  # share that remains in phases whose steps hardly scatter; chosen


LIMITS = Limits()
