"""The lines of an audit: what was seen, what it would do in training, and what to do."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from ppo.config import EnvConfig
from ppo.diagnose.delivery import delivery_findings
from ppo.diagnose.findings import Finding, fault, note
from ppo.diagnose.probe import ProbeError, Recording, record, same_observation

EXTREME_STEPS = 50
SEEDED_STEPS = 40
# Where a space has no bound, actions as large as this stand for what an untrained policy may send.
FAR = 1e3
# An external limit that cuts off more of V than this on average is worth a note.
NOTABLE_SHARE = 0.1


@dataclass(frozen=True)
class Subject:
    """What the rules look at.

    Attributes:
        settings: the `env` part of a config.
        seed: of all that is played.
        gamma: discount per env step.
        limit: env steps after which Gymnasium truncates; None where it does not.
        played: some env steps with random actions.
        observation_space: of the environment itself.
        action_space: of the environment itself.
    """

    settings: EnvConfig
    seed: int
    gamma: float
    limit: int | None
    played: Recording
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]


def lost_share(length: int, gamma: float) -> float:
    """Mean share of V that is lost where the end of an episode is wrongly not bootstrapped.

    With a constant reward and an endless future, the state k env steps before the end loses
    gamma^k of its value; the mean is over the `length` states of an episode.
    """
    if gamma == 1.0:
        return 1.0
    return gamma * (1.0 - gamma**length) / ((1.0 - gamma) * length)


def raised(what: str) -> Finding:
    """The environment failed."""
    return fault(
        "failure",
        what,
        "the run would end here",
        "mend the environment; the audit stops at the first failure",
    )


def as_numbers(values: list[Any]) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Rewards as numbers; NaN where one is none."""

    def number(value: Any) -> float:
        try:
            array = np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError):
            return float("nan")
        return float(array.reshape(-1)[0]) if array.size == 1 else float("nan")

    return np.array([number(value) for value in values])


def _ends(subject: Subject) -> Iterator[Finding]:
    played, limit = subject.played, subject.limit
    terminated = any(flag for flag, _ in played.ends)
    truncated = any(flag for _, flag in played.ends)
    if not played.ends and limit is None:
        yield fault(
            "ends",
            f"no episode ended in {played.n_steps:,} env steps, and there is no time limit",
            "there is no return to show, every environment stays in one episode, and what is"
            " rarely visited from there is never learned",
            "set env.max_episode_steps",
        )
    elif not terminated:
        yield note(
            "ends",
            f"nothing terminated in {played.n_steps:,} env steps",
            "all value beyond the limit comes through the bootstrap: treated as a death, the time"
            " limit would cost "
            + (f"{lost_share(limit, subject.gamma):.0%} of V" if limit else "much of V"),
            "nothing, with this trainer; keep gamma below 1",
        )
    if truncated and limit is None:
        yield note(
            "ends",
            "it truncates by itself, without a limit that Gymnasium knows of",
            "ppo cannot make that limit part of the task (env.time_limit: task)",
            "register it with max_episode_steps where the limit is one of time",
        )


def _share(subject: Subject) -> Iterator[Finding]:
    limit = subject.limit
    cut_short = [
        length
        for length, (terminated, truncated) in zip(
            subject.played.lengths, subject.played.ends, strict=True
        )
        if truncated and not terminated
    ]
    length = int(np.median(cut_short)) if cut_short else limit
    some_terminated = any(terminated for terminated, _ in subject.played.ends)
    if length is None or not some_terminated:  # without any termination, `_ends` has said it
        return
    share = lost_share(length, subject.gamma)
    if share >= NOTABLE_SHARE:
        yield note(
            "time limit",
            f"episodes are cut off after {length} env steps; at gamma {subject.gamma:g} that is"
            f" {share:.0%} of V on average",
            "a trainer that takes the limit for a death teaches the critic that much too little",
            "nothing, with this trainer, where the limit is no part of the task; else"
            " env.time_limit: task",
        )


def _both_flags(subject: Subject) -> Iterator[Finding]:
    both = sum(terminated and truncated for terminated, truncated in subject.played.ends)
    if both:
        yield note(
            "both flags",
            f"{both} of {len(subject.played.ends)} episodes ended with terminated and truncated"
            " at once",
            "a trainer in which truncated wins would bootstrap from a state without a future",
            "nothing, with this trainer: terminated wins",
        )


def _flag_types(subject: Subject) -> Iterator[Finding]:
    odd = {
        type(flag).__name__
        for flags in subject.played.flags
        for flag in flags
        if not isinstance(flag, (bool, np.bool_))
    }
    if odd:
        yield fault(
            "flags",
            f"terminated or truncated is of type {', '.join(sorted(odd))}",
            "arithmetic with such a flag (~1 is -2) turns a gate into a number",
            "return bool(...)",
        )


def _self_resetting(subject: Subject) -> Iterator[Finding]:
    played = subject.played
    distinct = len({repr(first) for first in played.first}) > 1
    # A wrapper's time limit knows nothing of what the environment does at an end of its own.
    by_kind: dict[bool, list[bool]] = {True: [], False: []}
    for (terminated, _), last, following in zip(
        played.ends, played.last, played.first[1:], strict=True
    ):
        by_kind[terminated].append(same_observation(last, following))
    if distinct and any(len(same) > 1 and all(same) for same in by_kind.values()):
        yield fault(
            "last observation",
            "the last observation of every episode is the first one of the next",
            "a time limit would bootstrap from the reset state, of another episode",
            "return the state that the last action led to, and reset in reset()",
        )


def _reuse(subject: Subject) -> Iterator[Finding]:
    if subject.played.reused:
        yield fault(
            "observation buffer",
            "an observation that was returned changed when the environment went on",
            "whoever keeps it (a buffer, the last observation of an episode) keeps the wrong one",
            "return a copy; this trainer copies, others need not",
        )


def _reward_form(subject: Subject) -> Iterator[Finding]:
    rewards = subject.played.rewards
    kinds = sorted({type(reward).__name__ for reward in rewards})
    shapes = {np.shape(reward) for reward in rewards if isinstance(reward, np.ndarray)}
    numbers = as_numbers(rewards)
    if any(np.asarray(reward, dtype=object).size != 1 or reward is None for reward in rewards):
        yield fault(
            "reward",
            f"the reward is no single number ({', '.join(kinds)})",
            "it is refused",
            "return one float",
        )
        return
    if shapes:
        yield fault(
            "reward",
            f"the reward is an array of shape {sorted(shapes)[0]}",
            "(B, 1) against (B,) broadcasts to (B, B) in a loss that nobody notices",
            "return float(reward); this trainer does",
        )
    elif not all(isinstance(reward, (float, np.floating)) for reward in rewards):
        yield fault(
            "reward",
            f"the reward is of type {', '.join(kinds)}",
            "a buffer of that type cuts a bootstrap that is added to it to a whole number",
            "return float(reward); this trainer does",
        )
    if not np.isfinite(numbers).all():
        yield fault(
            "reward",
            f"{int((~np.isfinite(numbers)).sum())} rewards are not finite",
            "the run would stop there",
            "find what computes them",
        )
    elif np.ptp(numbers) == 0.0 and not subject.played.lengths:
        yield note(
            "reward",
            f"every reward was {numbers[0]:g}",
            "nothing can be learned from it, unless it is sparse",
            "check it with a policy that should earn something",
        )


def _observations(subject: Subject) -> Iterator[Finding]:
    space, observations = subject.observation_space, subject.played.observations
    if not isinstance(space, spaces.Box):
        return
    dtypes = sorted({str(np.asarray(one).dtype) for one in observations} - {str(space.dtype)})
    if dtypes:
        yield fault(
            "observation dtype",
            f"observations are {', '.join(dtypes)}, but the space says {space.dtype}",
            "vector environments cast them in silence: floats to integers, where the space says so",
            "return what the space declares",
        )
    shapes = {np.shape(one) for one in observations} - {space.shape}
    if shapes:
        yield fault(
            "observation shape",
            f"an observation has shape {sorted(shapes)[0]}, but the space says {space.shape}",
            "it is refused",
            "return what the space declares",
        )
        return
    if not all(np.isfinite(one).all() for one in observations):
        yield fault(
            "observation",
            "an observation is not finite",
            "the run would stop there",
            "find what computes it",
        )
    entries, beyond = np.zeros(space.shape, dtype=np.bool_), 0
    for one in observations:
        outside = (one < space.low) | (one > space.high)
        entries |= outside
        beyond += int(outside.any())
    if beyond:
        yield fault(
            "observation range",
            f"{beyond / len(observations):.0%} of observations are outside of their space, in"
            f" entries {np.flatnonzero(entries)[:6].tolist()}",
            "whatever scales by the bounds is wrong; this trainer does not, others may",
            "declare the true bounds, infinite ones where there are none",
        )


def _actions(subject: Subject) -> Iterator[Finding]:
    space = subject.action_space
    if not isinstance(space, spaces.Box):
        return
    unbounded = ~(np.isfinite(space.low) & np.isfinite(space.high))
    if unbounded.any():
        yield note(
            "action bounds",
            f"{int(unbounded.sum())} of {unbounded.size} entries of an action have no bound on at"
            " least one side",
            "actions are sent as they are sampled; a trainer that rescales to the bounds makes NaN",
            "bound them, if there is a natural bound",
        )
    elif not (np.allclose(space.low, -1.0) and np.allclose(space.high, 1.0)):
        width = float((space.high - space.low).max())
        off_centre = bool((np.abs(space.low + space.high) > 0.5 * (space.high - space.low)).any())
        if width > 4.0 or width < 0.5 or off_centre:
            yield note(
                "action bounds",
                f"bounds are {space.low.min():g} to {space.high.max():g}, not around ±1",
                "a fresh policy samples around 0 with a standard deviation of 1, which is clipped"
                " to the bounds: little of a wide range is tried, and much of a narrow one is its"
                " edge",
                "rescale actions in the environment, or set policy.log_std_init",
            )


def _seeds(subject: Subject) -> Iterator[Finding]:
    def play(seed: int) -> Recording:
        # The same actions for all seeds: what differs is the environment.
        actions = _scripted(subject.action_space, subject.seed)
        return record(subject.settings, steps=SEEDED_STEPS, seed=seed, choose=actions)

    try:
        one, again, other = play(subject.seed), play(subject.seed), play(subject.seed + 1)
    except ProbeError as error:
        yield raised(str(error))
        return
    if not _same_play(one, again):
        yield fault(
            "seeds",
            "the same seed and the same actions gave something else the second time",
            "no run can be repeated, and no fault be found again",
            "draw from self.np_random, and from nothing else",
        )
    elif _same_play(one, other):
        yield note(
            "seeds",
            "two seeds gave the same observations and rewards",
            "environments side by side see the same, and are worth one, until their actions differ",
            "nothing, if the task is meant to start in one state; else draw from self.np_random",
        )


def _scripted(space: spaces.Space[Any], seed: int) -> Callable[[Any], Any]:
    script = deepcopy(space)
    script.seed(seed)
    return lambda _: script.sample()


def _same_play(left: Recording, right: Recording) -> bool:
    return (
        left.lengths == right.lengths
        and all(map(same_observation, left.observations, right.observations))
        and all(map(same_observation, left.rewards, right.rewards))
    )


def _extremes(subject: Subject) -> Iterator[Finding]:
    space = subject.action_space
    if not isinstance(space, spaces.Box):
        return
    corners = {
        "the lowest actions": np.where(np.isfinite(space.low), space.low, -FAR),
        "the highest actions": np.where(np.isfinite(space.high), space.high, FAR),
    }
    for name, corner in corners.items():
        action = corner.astype(space.dtype)
        try:
            played = record(
                subject.settings,
                steps=EXTREME_STEPS,
                seed=subject.seed,
                choose=partial(_always, action),
            )
        except ProbeError as error:
            yield fault(
                "extreme actions",
                f"with {name}, {error}",
                "an untrained policy sends them",
                "bound what the action does",
            )
            return
        broken = not np.isfinite(as_numbers(played.rewards)).all() or not all(
            np.isfinite(np.asarray(one, dtype=np.float64)).all()
            for one in played.observations
            if not isinstance(one, (dict, tuple))
        )
        if broken:
            yield fault(
                "extreme actions",
                f"{name} give observations or rewards that are not finite",
                "the run would stop there",
                "bound what the action does, or terminate before it breaks",
            )
            return


def _always(action: Any, _: Any) -> Any:
    return action.copy()


def _delivery(subject: Subject) -> Iterator[Finding]:
    yield from delivery_findings(
        subject.settings, seed=subject.seed, steps=_delivery_steps(subject.played)
    )


def _delivery_steps(played: Recording) -> int:
    """Enough to see an end, where one comes soon."""
    return min(max(played.lengths[:2], default=100) + 20, 400)


RULES: tuple[Callable[[Subject], Iterator[Finding]], ...] = (
    _ends,
    _share,
    _both_flags,
    _flag_types,
    _self_resetting,
    _reuse,
    _reward_form,
    _observations,
    _actions,
    _seeds,
    _extremes,
    _delivery,
)
