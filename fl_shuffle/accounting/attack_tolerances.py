"""The tuning constants of the attacks, as fields of the one object in `tolerances`.

They decide how much an attack is seen to reach; what is left out is counted as its error."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AttackTolerances:
    """Inherited by `Tolerances`; read as `TOLERANCES.<field>`."""

    # attacks.likelihood_ratio
    attack_nearly_best: float = 0.8
    """Data sets whose signal is at least this share of the best one's are all evaluated."""
    attack_cells: int = 400
    """Cells of the line on which the attack's score is computed."""
    attack_largest_score: float = 50.0
    """Scores are cut here: a single report that says more decides alone."""
    attack_smoothing: float = 0.03
    """Standard deviation of the test's own noise, at least this share of the sum's, at most
    twice."""
    attack_period_sds: float = 24.0
    """Period of the lattice, in standard deviations of the sum."""
    attack_gauss_reach: float = 8.5
    """Beyond this many deviations the transform of the test's noise is below 1e-15."""
    attack_cut_off: float = 1e-15
    """What lies beyond the transform's reach, added to the error."""
    attack_negligible: float = 1e-18
    """Frequencies that weigh less than this are left out and counted as error."""
    attack_thresholds: int = 400
    """Thresholds at which the attack's error rates are read."""
    attack_many_cells: int = 1000
    """Where there are more cells, those of almost the same score are merged ..."""
    attack_score_width: float = 0.02
    """... within so many standard deviations of the score of the client's report."""
    attack_cell_error: float = 1e-14
    """Allowance for the relative error of a cell's probability."""

    # attacks.vector_data_sets
    attack_reach: float = 9.5
    """The cells cover so many noise widths beyond the outermost means."""
    attack_max_shift: float = 12.0
    """Reports more than twice so many noise widths apart give themselves away: nothing is
    computed."""
    attack_size_cells: int = 12
    """Cells of a report's distance from the line, beside those along it."""
    attack_corner_line: int = 120
    """Cells along the line where one corner is compared with others ..."""
    attack_corner_cells: int = 20
    """... and places of the corner that are compared."""
    attack_few_groups: int = 64
    """Up to so many groups of others the cells are fine ..."""
    attack_many_groups: int = 1000
    """... up to so many coarse; beyond, nothing is claimed."""
    attack_radius_bin: float = 0.02
    """More radii than that are rounded down within bins this wide, in logarithms."""
    attack_coarse_cells: int = 120
    """Coarse cells along the line ..."""
    attack_coarse_size_cells: int = 6
    """... and of the distance from it."""
    attack_size_reach: float = 6.0
    """Distances are told apart within so many deviations of the noise's own."""
    attack_most_across: int = 100_000
    """So many coordinates across the line are used: up to there gamma integrals are good to
    1e-13."""
    attack_unseen: float = 1e-22
    """Cells less likely than this are left out and counted as error."""
    attack_size_cell_error: float = 1e-11
    """Allowance for the relative error of a cell's probability where distances are used."""

    # attacks.recognition
    recognition_classes: int = 256
    """More classes than this are put in bins of scale and radius ..."""
    recognition_bin: float = 0.01
    """... as wide as this in logarithms: whether the attack is certain is then decided a little
    late."""
    # attacks.sum_attack
    sum_attack_coarsest: float = 0.125
    """Where a grid is coarser than this share of its noise scale no test is claimed."""
    sum_attack_log_missed: tuple[float, ...] = (-24.0, -36.0, -60.0)
    """Logarithms, one of which is tried after the other, of the probability, times e^epsilon, that
    rounding moves the test by more than is allowed for."""

    # attacks.laplace_sums
    laplace_sum_digits: float = 32.0
    """Copies and cut-off parts of an integral are e^-32 of its bound, or less."""
    laplace_sum_nodes: int = 200_000
    """Where an integral takes more points, of very few reports, nothing is claimed."""
    laplace_sum_scales: int = 64
    """More noise scales than this are rounded up."""
    laplace_sum_bisections: int = 24
    """Steps to a saddle point: any point near it will do."""
    laplace_sum_reach: float = 7e7
    """The end of an integral is looked for up to so many deviations' inverses."""
    laplace_sum_thresholds: int = 13
    """So many thresholds are tried first; any threshold is a test."""
    laplace_sum_sections: int = 10
    """Golden sections to the best one."""

    # attacks.chosen_datasets
    dataset_max_counted: int = 1_000_000
    """Outcomes of a binomial count that are added up; leaving the rest out lowers a lower
    bound."""
