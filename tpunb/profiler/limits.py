"""Thresholds of a capture, each with its unit and its evidence."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Thresholds of a capture; "chosen" where no measurement, tool or paper gives the value.

    ``benchmarks/overhead.py`` measures what those of windows cost together.
    """

    # when a window is requested (schedule)
    enough_steps: int = 20  # of a window at least, and traced in full after which a kind is well sampled; chosen
    further_steps: int = 10  # of a later window at least; chosen: tracing a step of 100 ms takes 8 ms
    longest_window_s: float = 60.0  # that a profiler service accepts
    most_events: int = 1_000_000  # of a window: a service drops later ones; windows are planned for half of them
    overhead_by_age: tuple[tuple[float, float], ...] = ((5.0, 0.10), (20.0, 0.05), (60.0, 0.02))
    """The budget "auto": (age of the run in seconds, its largest overhead from then on); chosen."""
    longest_evenly_steps: int = 50  # of a window; chosen: cost grows with length, information hardly does
    cut_steps: int = 3  # by a window, at its ends and where it is a little shorter; chosen
    least_lost_share: float = 0.25  # of a traced step, assumed for the length of a window; chosen
    kind_tries: int = 3  # windows without one full step of a kind before it is given up; chosen
    shortest_window_s: float = 0.1  # chosen: shorter ones cost more than they record
    unmarked_start_s: float = 1.0  # into a run without steps, of the first window; chosen
    blind_window_s: float = 0.25  # longest before any step has ended; chosen: a longer one records compilation only
    steady_steps: int = 3  # of similar time after which a kind is compiled; chosen
    steady_ratio: float = 2.0  # largest between them; chosen
    varied_steps: int = 8  # after which a kind is traced even if their times differ; chosen
    stalled_ratio: float = 3.0  # of the running step by the usual time, if `stalled_s` longer too; chosen
    stalled_s: float = 0.1  # beyond the usual step time; chosen
    rest_s: float = 1.0  # between two windows that are due at once, or `current_steps`; chosen
    budget_share: float = 0.75  # that windows of well sampled kinds may use; chosen
    budget_share_new: float = 0.9  # that windows of other kinds may use; chosen
    least_cost_share: float = 0.02  # of a window without events, assumed lost until it is measured; chosen
    event_cost_s: float = 2e-6  # assumed for each event until it is measured; chosen
    place_steps: int = 10  # traced in full, of one pace and input wait, after which these are well sampled; chosen
    usual_steps: int = 50  # that give the usual step time; chosen
    current_steps: int = 10  # that give the current step time; chosen
    current_s: float = 0.5  # or those of this time; chosen

    # what windows cost (window_cost)
    guessed_cost_share: float = 1 / 6  # of a window, assumed until it is measured: of a small model on a shared CPU
    guess_weight_s: float = 0.3  # of steps in windows that weigh as much as the guess; chosen
    compared_steps: int = 50  # before and after a window that those in it are compared with; chosen
    fewest_compared: int = 3  # steps outside windows, or windows with a spread; chosen
    other_work_s: float = 0.2  # beyond three usual step times, of a step that is not compared; chosen
    open_windows: int = 8  # that still take steps after them; chosen
    interval_errors: float = 2.0  # standard errors in half of a 95 % interval: 1.96 of a normal distribution

    # what is recorded (recorder, reducer, step_clock)
    request_moment_ns: int = 1_000_000_000  # for which steps are kept, as a request may not be pending yet; chosen
    final_write_s: float = 10.0  # that the last write waits for the one in progress; chosen
    most_messages: int = 20  # of the profiler in run.json; chosen
    latest_steps: int = 100  # for the scheduler between windows; chosen: of very short ones there are thousands
    typical_steps: int = 31  # of a kind that the typical step time is taken from; chosen
    program_share: float = 0.99  # of the instructions in a window that the program that ran must have; chosen
    most_skew_ns: int = 10_000_000_000  # between the clocks of worker and host; beyond, the host's is used; chosen
    clock_error_ns: int = 1_000_000  # of a reading of two clocks: by less, windows do not move; chosen
    clock_jump_ns: int = 100_000_000  # of the system clock: ntpd sets it from 128 ms on, and slews less
    phase_tries: int = 3  # windows that end in an under-sampled phase before it is given up; chosen
    memory_margin: int = 64_000_000  # bytes, for a window or a write; measured: a run ends well with 30 MB to spare
    reducer_nice: int = 5  # of the process that reduces windows: the training comes first; chosen
    most_unreduced: int = 20  # windows without a process that reduces them: 60 MB of those of the samples; chosen
    reducer_look_s: float = 5.0  # between two looks of it whether the program still runs; chosen
    pace_ratio: float = 1.5  # of the step times of two paces; chosen, as in tpunb.cluster
    same_clock_ps: int = 50_000_000  # from an annotation to the host clock, which agree to microseconds; chosen
    shortest_span_ns: int = 1_000_000  # chosen: short callbacks are summed by step
    first_step_ns: int = 200_000_000  # longest typical step time before the second step has ended; chosen

    # work in flight (in_flight)
    watch_rest_s: float = 0.01  # between two waits for short steps: a hundred wakes a second; chosen
    late_launch_ns: int = 1_000_000_000  # after a step, that a launch may still belong to it; chosen
    drain_s: float = 60.0  # at the end of the block, for work in flight; chosen

    # samples of stalls (stall_sampler)
    stall_sample_ns: int = 20_000_000  # between two samples; chosen
    switch_s: float = 0.0001  # after which a thread gives up the interpreter lock, while stacks are sampled; chosen
    stall_idle_ns: int = 20_000_000  # between two looks at a training that progresses; chosen
    frequent_samples: int = 500  # until looks are rarer: a short run needs them, and looks cost 1 % of a long one
    rare_samples: int = 2  # that each look stands for from then on; chosen
    stall_steps: int = 5  # typical step times that a stall exceeds; chosen
    stall_shortest_ns: int = 100_000_000  # that a stall exceeds too; chosen
    stall_late_ns: int = 100_000_000  # from when a sample has waited for the interpreter lock; chosen
    most_samples: int = 90_000  # between two takes: half an hour; chosen
    most_launches: int = 1000  # between two takes; chosen
    most_frames: int = 50_000  # of the stacks of a run, each once below its caller: about 30 MB of memory; chosen
    most_threads: int = 64  # of a sample, beside the one that trains; chosen
    longest_name: int = 1000  # characters of a file or function of a stack; chosen
    load_ns: int = 1_000_000_000  # between two samples of the process' load; chosen

    # trainings that stand still (standing)
    standing_s: float = 15.0  # without a step, at least; asked for
    standing_steps: int = 10  # usual steps without one, at least; asked for
    standing_first: int = 3  # steps, before which a program may compile or load; chosen
    standing_working_s: float = 600.0  # in which a program that is at work may take no step; chosen
    standing_busy: float = 0.05  # processors of a program at work: one that polls takes less; measured
    standing_io: int = 1_000_000  # bytes a second of one: the looks themselves read less; measured
    standing_works: int = 10  # looks, that is about seconds, over which both are measured; chosen
    standing_frames: int = 40  # of a stack that is written as text; chosen
    standing_look_s: float = 15.0  # between two records of where it stands; asked for
    standing_rare_s: float = 120.0  # after which it is recorded more rarely; chosen
    standing_rest_s: float = 60.0  # between two records from then on; asked for

    # waits of the threads of a capture (session)
    collect_s: float = 120.0  # for the last window to be collected and written; chosen
    deferred_collect_s: float = 3.0  # for both, if readers reduce what is not reduced: containers are killed in 10 s
    yield_s: float = 30.0  # of the program's profiler for the window to end; chosen
    plan_s: float = 0.05  # between two looks at the plan; chosen
    programs_s: float = 1.0  # at least between two requests of programs; chosen
    poll_s: float = 0.2  # of a wait: an unlimited one in the main thread is not interruptible; chosen
    part_s: float = 10.0  # between two writes of steps without a window; chosen
    most_noted: int = 4096  # events that wait to be folded: 1 MB, 0.4 s at 10,000 a second
    few_noted: int = 8  # events that the training folds itself, `events_rest_ns` after the last: long steps; chosen
    events_rest_ns: int = 10_000_000  # between two writes of events by the training: each takes 5 µs, 0.05 % of it
    tail_s: float = 0.8  # between two writes of the latest steps alone, or 100 times what one takes; chosen
    tail_rest_s: float = 5.0  # longest between them: the first takes long; chosen
    tail_steps: int = 5000  # in it, above which a part is written: 8 ms of Python; chosen
    facts_s: float = 30.0  # between two writes of run.json; chosen
    track_s: float = 30.0  # between two sends to trackers; asked for
    log_s: float = 60.0  # between two lines in the log; chosen
    fork_s: float = 3.0  # longest wait of a fork for the first window; it waits once; chosen

    # profiler services (service_client, sources)
    host_tracer_level: int = 2  # of TensorFlow: 1 lacks operation names, 3 has all of them at three times the cost
    late_share: float = 0.75  # of a window's length, or of a second: beyond it, the window is terminated; chosen
    ready_s: float = 20.0  # until a service must answer; chosen
    worker_collect_s: float = 60.0  # of a worker beyond its window; chosen
    worker_trial_s: float = 2.0  # for a worker that failed before; chosen
    worker_ended_s: float = 15.0  # of a window that was ended early, to return; chosen
    worker_programs_s: float = 5.0  # of a worker to send its programs; chosen
    worker_terminate_s: float = 2.0  # of `stop` for the workers; chosen
    worker_rest_s: float = 60.0  # longest between two requests of a worker that fails; chosen
    jax_rest_windows: int = 8  # left to TensorFlow after one in which JAX computed nothing; chosen
    exit_s: float = 10.0  # of the interpreter's end for a profiler that collects a window; chosen
    largest_trace: int = 16_000_000  # bytes of a window of PyTorch: half a second of the thread that trains; measured
    fewest_steps: int = 5  # of it, which may make it larger; chosen
    boundary_s: float = 5.0  # after the end of a window of PyTorch, for the next boundary of steps; chosen
    import_look_s: float = 0.05  # between two checks whether a framework is in use; chosen
    metadata_s: float = 3.0  # for the metadata server of a Google Cloud machine; chosen
    resolve_s: float = 60.0  # for the workers of a TPU by name; chosen


LIMITS = Limits()
