"""Where exactness ends and effort is limited: every tuning constant of the accountant, with its
reason.

Most decide how tight a number is and how long it takes, and what a cut-off leaves out is always
added to the answer. Those named inflation, safety, error or cut-off cover round-off or what was
left out: they may be raised, never lowered."""

from __future__ import annotations

from dataclasses import dataclass

from fl_shuffle.accounting.attack_tolerances import AttackTolerances
from fl_shuffle.accounting.partial_shuffle_tolerances import PartialShuffleTolerances
from fl_shuffle.accounting.sum_tolerances import SumTolerances


@dataclass(frozen=True)
class Tolerances(PartialShuffleTolerances, SumTolerances, AttackTolerances):
    """The one object that holds them; `TOLERANCES` is the one in use.

    Those of the partial-shuffle bound, of sums and of the attacks are inherited."""

    # engine.fourier
    fourier_skip_level: float = 1e-11
    """Nodes whose terms together stay below this share are bounded, not summed."""
    fourier_block: int = 64
    """Nodes looked at together when those that matter are selected."""
    fourier_cells_at_once: int = 1 << 20
    """Atoms times nodes held in memory at a time (16 MiB of complex numbers)."""
    fourier_few_atoms: int = 64
    """Up to this many atoms every node is evaluated by itself: splitting would not pay."""
    fourier_strides: tuple[int, int, int, int, int] = (1, 16, 64, 256, 1024)
    """Candidates for how nodes are split; 1 takes every node by itself."""

    # engine.stop_loss
    negligible_delta: float = 1e-140
    """No guarantee is asked this far out: finer is not computed."""
    negligible_blanket_mass: float = 1e-100
    """Blanket masses up to this are dropped, which can only raise delta."""
    rare_positive_draws: float = 0.05
    """Fewer expected positive draws than this: outcomes without any are left out from the
    start."""
    log_vanishing_delta: float = -640.0
    """Below e^-640 (1e-278) the Chernoff bound E(S)_+ <= E e^(theta S) / (e theta) is enough."""
    stop_loss_few_outcomes: int = 150_000
    """With no more outcomes than this they are all added up: as fast as the integral, and
    exact."""
    stop_loss_max_work: float = 1e8
    """Nodes times nanoseconds for each, with `best_effort`: a tenth of a second."""
    stop_loss_patient_work: float = 2e9
    """The same where a refusal is the alternative: seconds."""
    stop_loss_error: float = 1e-6
    """Allowed, unless told, to laws given by atoms ..."""
    stop_loss_rounded_error: float = 2e-4
    """... and to those that must be rounded first: finer would be felt."""

    # engine.convex_rounding
    rounding_max_atoms: int = 30_000
    """A law rounded to more atoms than this would take the engine seconds."""
    rounding_log_negligible: float = -645.0
    """The engine answers such bounds by Chernoff alone: no refinement is needed."""
    rounding_large_law: int = 8_000
    """Atomic laws larger than this are rounded too: the engine's time grows with their size."""
    rounding_step: float = 1e-3
    """Each pass refines towards this share of the last one's inflation: coarse cells say little
    about where fine ones are needed."""

    # engine.blanket_counts
    pmf_inflation: float = 1.0 + 1e-11
    """Covers the round-off of the binomial probabilities, a few hundred units in the last
    place."""

    decay_least_square: float = 1e-12
    """Squared moduli count as no smaller where they are turned into angles: near a right angle
    half of the digits would be lost."""

    # engine.monotone_search
    search_log_tolerance: float = 2e-4
    """The epsilon searches stop once the curve is within this relative distance of the target."""
    search_max_evaluations: int = 200
    """A monotone search needs a dozen: so many mean that the curve is not monotone."""
    search_jump_width: float = 1e-6
    """Where a curve jumps its place is found this closely, relatively."""
    search_fitted_steps: int = 4
    """So many first steps fit a Gaussian curve; later ones interpolate between what was found."""

    # engine.composition
    lattice_cells_per_sd: float = 12.0
    """The lattice is at least this many times finer than one round's spread of the privacy
    loss."""
    lattice_least_spread: float = 0.25
    """That spread is no less than this share of the standard deviation, where rare large losses
    decide the latter."""
    lattice_window_sds: float = 20.0
    """Width of the lattice's window, in standard deviations of the composed loss; what lies outside
    is bounded."""
    lattice_max_cells: int = 1 << 20
    """Cells of the largest lattice: more take seconds and gain nothing."""
    lattice_missed_share: float = 1e-8
    """The window is widened while more than about this share of delta may lie above it."""
    tilt_ladder: float = 1.25
    """Ratio of neighbouring tilts tried for the window."""
    tilt_far_off: float = 3.0
    """Where Markov's inequality is so many times above an epsilon, tilts below its best are tried,
    too ..."""
    tilt_far_below: float = 1e-3
    """... and where delta is below this share of what that inequality says of it."""
    tilt_ladder_down: int = 40
    """So many steps of the ladder below the natural tilt are tried."""
    markov_ladder: float = 2.0
    """Ratio of neighbouring rates of Markov's inequality."""
    markov_range: tuple[float, float] = 0.003, 30.0
    """Rates of Markov's inequality, in units of 1 / sd, for what lies outside the window;
    powers of the ladder, so that their moments are computed once for many rounds."""
    lattice_rare_mass: float = 1e-60
    """Atoms below this become certain loss: large losses would only narrow the choice of
    tilts."""
    lattice_max_loss: float = 600.0
    """Larger privacy losses count as certain: their exponentials overflow."""
    lattice_first_frequencies: int = 32
    """So many frequencies of a composed law are tried first; then twice as many, and so on."""
    lattice_log_negligible: float = -45.0
    """Frequencies at which all compositions have a smaller modulus (its logarithm) are left out.
    That is far below the round-off that is added."""
    lattice_spectra: int = 6
    """So many transforms of a pair are kept, the last ones: a run's tilt changes slowly."""
    lattice_safety: float = 1.0 + 1e-9
    """Relative inflation that covers the round-off of the convolution's bookkeeping."""

    # bounds.laplace_mechanism
    laplace_pair_nodes: int = 1500
    """Points of the exact one-round profile that the composed pair connects."""
    laplace_max_ratio: float = 500.0
    """Larger local budgets count as no protection at all."""

    # laws.outcome_pair
    outcome_merge_tolerance: float = 1e-11
    """Losses and ratios this close count as the same outcome (see `OutcomePair.merged`)."""

    # laws.continuous
    witness_cells: int = 600
    """Cells of the partition through which a density's lower bound looks at it."""

    # laws.products
    product_max_outcomes: int = 300_000
    """More kinds of joint report than this do not fit the memory."""
    product_laplace_cells: tuple[int, int, int, int, int, int] = (0, 400, 64, 20, 12, 8)
    """Cells per side of each Laplace part, by the number of such parts."""
    product_max_cases: int = 4096
    """More pairs of joint inputs than this take minutes."""

    # bounds.worst_client
    exact_budget_classes: int = 16
    """Up to this many distinct budgets each is tried as the differing client's."""
    budget_groups: int = 64
    """The others' budgets are merged into so many groups at most, each at its least favourable
    end."""

    # rounds.equal_rounds
    equal_rounds_nodes_per_spread: float = 160.0
    """Points of the one-round curve per spread of its privacy loss, over very many rounds: chords
    between them add less than 1e-5 to epsilon."""
    equal_rounds_fewer: float = 50.0
    """T rounds do with this / sqrt(T) fewer points per spread: they need them further out."""
    equal_rounds_spreads: float = 9.0
    """The curve is followed over so many spreads, ever less densely."""
    equal_rounds_dense: float = 2.1
    """Points are evenly dense over so many spreads ..."""
    equal_rounds_deepest: float = 5.0
    """... and this / sqrt(T) more over T rounds: where delta is decided each round's loss lies out
    by its share of the whole's deviation."""
    equal_rounds_tail_points: int = 12
    """Points beyond the followed part, up to the local epsilon."""

    # rounds.participation_history
    few_histories: int = 8
    """Up to so many histories are compared with one another and worked out one by one."""

    # rounds.round_library
    round_nodes_per_sd: float = 10.0
    """Points of a round's curve per standard deviation of its privacy loss, near zero (0.1% in
    epsilon)."""
    round_coarse_nodes_per_sd: float = 5.0
    """The same for clients of all but the largest ball, where many balls are told apart (0.4%)."""
    round_near_sds: float = 3.0
    """Within so many standard deviations the points are that dense; beyond, half as dense: a
    composition of many rounds has little there."""
    round_relative_error: float = 2e-3
    """Asked of the engine for every point of a round's curve."""
    round_dense_sds: float = 5.0
    """Beyond so many standard deviations the points thin out ..."""
    round_thin_share: float = 0.4
    """... by half after so many times the points of a standard deviation near zero."""
    round_patience: int = 3
    """After so many points without a smaller certified value the next ones are further out."""
    round_max_stalled: int = 8
    """So many points without a smaller certified value end the curve; what is left is certain
    loss."""
    round_far_sds: float = 4.5
    """Further out than this the points matter less and are computed more coarsely."""
    round_far_relative_error: float = 0.25
    """Asked of the engine for the far points."""
    round_local_points: int = 16
    """So many points of the local curve within a long step, where it is the smaller one."""
    round_enough_delta: float = 1e-12
    """Below this the curve is no longer computed but bounded by its last value and the local
    one."""
    round_floor_delta: float = 1e-16
    """A curve is followed down to here; the rest is counted as certain loss."""
    round_known_epsilons: int = 1 << 14
    """So many histories' epsilons are kept: a long run has new ones in every round."""
    round_precise_points: int = 8
    """Up to so many points of a single round's curve are as precise as its epsilon."""
    few_balls: int = 8
    """With more radii than this among the others the random number of blanket reports is replaced
    by one that it hardly ever falls below."""
    max_local_pair_ratio: float = 12.0
    """Moves of more noise widths than this get no dominating pair: their losses overflow."""
    round_exact_reports: int = 128
    """Batches with at most so many others are accounted exactly; larger ones share a type with
    some."""

    # engine.dp_accounting_export
    export_smallest_delta: float = 1e-16
    """A composed curve is followed down to here: the rest counts as certain loss."""
    export_nodes: int = 1000
    """Points at which a composed curve is handed over: chords between them cost less than 1e-4."""
    export_inflation: float = 1.0 + 1e-12
    """Covers the round-off of the split masses, a few units in the last place."""

    # bounds.vector
    min_blanket_reports: float = 0.1
    """With fewer expected blanket reports near the centre no credit is computed: it is small."""
    min_blanket_reports_far: float = 3.0
    """The same further out, where it is slow as well."""
    near_reference: float = 0.3
    """Noise widths: nearer to the blanket's centre than this the smaller blanket is enough."""
    max_mu_share: float = 0.95
    """A predicted mu above this share of the local one is no gain: likelihood ratios vary too
    much."""
    max_law_exponent: float = 500.0
    """Larger exponents of the amplification law would overflow."""
    max_concentration: float = 0.01
    """Share of the blanket reports that may be given up to replace their number by a fixed
    one."""
    heavy_tail_distance: float = 0.4
    """From this distance on (noise widths) the law has a heavy tail ..."""
    few_blanket_reports: float = 200.0
    """... and with fewer blanket reports than this its terms are dear: 2% of delta is allowed."""
    vector_fallback_error: float = 2e-3
    """Asked of the engine where it refuses what was asked first; then the local curve decides."""
    negligible_local_delta: float = 1e-40
    """Where the local curve is below this there is nothing left to amplify."""
    vector_table_error: float = 1e-3
    """From this relative error on, few blanket reports are looked up in a table
    (`few_blankets`)."""
    vector_relative_error: float = 5e-4
    """Asked of the engine, relative to delta, where the caller names nothing else."""
    vector_clearly_better: float = 0.8
    """The blanket is computed unless the other bound is below this share of the blanket's own
    normal approximation."""
    vector_hopeless: float = 10.0
    """Where the other bound is so many times the blanket's it is not computed farther out."""
    vector_no_gain: float = 1.5
    """... nor where the blanket is predicted to be so many times what is known already."""
    vector_faint_batch: int = 100
    """Up to so many faint reports the blanket alone is computed: many times faster, and at most
    2% above in one round, 0.1% over fifty."""
    vector_faint_spread: float = 0.03
    """Reports are faint if their means differ by at most so many noise widths."""
    vector_table_reports: int = 256
    """The table of few blanket reports reaches to so many; larger tables are not built."""
    vector_smallest_table: int = 64
    """No table is smaller: it costs no more, and serves more batches."""
    vector_table_tail: float = 1e-18
    """Where the Gaussian law of the table is cut: below what any target resolves."""

    # queries.planned_noise
    plan_relative_error: float = 5e-3
    """A plan's scale is found to this accuracy; the run's own accounting is finer."""
    plan_nodes: float = 1.25
    """Points per standard deviation of the curve that compares scales ..."""
    plan_dense_sds: float = 1.25
    """... which thin out beyond so many of them ..."""
    plan_thin_after: int = 4
    """... by half after so many points ..."""
    plan_floor_share: float = 1e-2
    """... down to this share of what delta leaves to one round."""
    plan_expected_gain: float = 0.995
    """First guess of a run's own accounting, as a share of that ..."""
    plan_rare_gain: float = 1.03
    """... where rare losses of a single round do not decide, and where they do."""
    plan_one_round_scale: float = 5e-4
    """The scale of a plan for a single round is found to this relative accuracy."""
    plan_close: float = 0.02
    """A cost within this relative distance below its target ends the search ..."""
    plan_aim: float = 0.015
    """... which is looked for so far below it, relative ..."""
    plan_least_step: float = 0.002
    """... after a miss by no less than this share of the scale more, and twice that after two."""
    plan_rough_close: float = 0.005
    """... and so does a rough cost, for where a run's own accounting is asked first."""
    plan_near: float = 0.25
    """From so near the target (in logarithms) the next scale is extrapolated ..."""
    plan_rough_near: float = 0.15
    """... and from so near by rough costs."""
    plan_first_power: float = 2.5
    """Guess of the power of the scale with which the cost falls: 1, or up to 9 with heavy tails."""
    plan_expected_power_width: float = 0.02
    """Trials less apart (root of the sum of squares, in logarithms) say less of it."""
    plan_jump: float = 1.5
    """Where a rough cost this many times the target was seen, no further from a good scale ..."""
    plan_jump_width: float = 1.025
    """... than this factor, the cost jumps: nothing in between is tried."""
    plan_most_gain: float = 1.25
    """Accounted further above the rough cost a scale is before a jump: more noise is tried ..."""
    plan_past_jump: float = 1.015
    """... by this factor."""
    plan_scale_close: float = 1.01
    """... and so do a good and a bad scale so near: where tails are heavy the cost is steep."""
    plan_max_accounted: int = 4
    """So many scales at most are accounted as a run would be: one is usual."""
    plan_max_trials: int = 8
    """Rough trials for each of them: the curve is smooth, four are usual."""
    plan_smallest_share: float = 1e-4
    """Noise below this share of what suffices without a shuffler is not searched."""

    # accountant
    nearly_local: float = 0.95
    """Recognition that reaches this share of the local epsilon leaves nothing for another
    attack."""
    listed_classes: int = 64
    """With more classes than this a round lists only some of the most exposed; the worst client's
    epsilon and the totals are over every client."""

    published_classes: int = 1000
    """For more kinds of Laplace reports than this the published column is not computed."""

    # rounds.declared_round
    declared_round_inflation: float = 1.0 + 1e-7
    """Covers the round-off of the sum over a declared report's losses."""

    # rounds.shuffled_view
    max_balls_told_apart: int = 20
    """So many radii at most are told apart among clients with the same noise; the others count with
    a larger one."""

    # laws.gaussian_mechanism
    newton_near: float = 1e-12
    """Newton's answer is tried so far above and below, relatively, before bisection."""
    newton_steps: int = 12
    """Newton's method converges in five: more steps mean that bisection is due."""
    inverse_safety: float = 1e-10
    """Relative safety added to every inverse: above round-off, below anything that matters."""

    # rounds.local_guarantees
    local_laws: int = 256
    """With more distinct Laplace exposures, or declared epsilons, than this they are rounded up
    ..."""
    local_ladder: float = 0.01
    """... by this share at most ..."""
    local_rungs: int = 1000
    """... or to what lies so many rungs below the largest."""

    # laws.gaussian_inverses
    few_inverses: int = 64
    """Up to so many distinct values are inverted one by one."""
    inverse_nodes: int = 1000
    """Of many values so many are solved from afar; they give the others' starts."""
    newton_last_step: float = 1e-7
    """A smaller relative step of Newton's, from such starts, is the last: what it leaves is about
    its square."""

    # bounds.few_blankets
    few_blankets_window_sds: float = 9.0
    """The window reaches so many standard deviations of the tilted sum to either side of zero."""
    few_blankets_quiet: float = 1e-19
    """Frequencies at which the sum's transform is smaller are left out, and this is added for
    them."""
    few_blankets_safety: float = 1.0 + 1e-9
    """Relative inflation that covers the round-off of the sums over the lattice."""
    few_blankets_max_lattice: int = 1 << 16
    """A longer lattice costs more than the engine's single numbers would."""
    few_blankets_first_nodes: int = 400
    """Nodes of the rough law that only finds the tilt."""

    # bounds.blanket_moments
    closed_form_inflation: float = 1.0 + 1e-12
    """Covers the round-off of closed formulas, a few units in the last place."""

    # laws.discrete_noise
    discrete_noise_rounding: float = 1e-12
    """Relative; covers the round-off of closed formulas, a few units in the last place."""

    # queries.bound_query
    query_profile_points: int = 300
    """Points at which a Gaussian profile is handed over; chords between them lie above it."""


TOLERANCES = Tolerances()
