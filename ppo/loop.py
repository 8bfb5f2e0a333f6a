"""One run: collect, estimate, learn; then log, evaluate, keep; repeat."""

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ppo import schedules
from ppo.checkpoint import TrainingState
from ppo.collector import Collected, RolloutCollector
from ppo.compilation import CompileChoice, CompiledEpoch, choose
from ppo.config import Config
from ppo.cores import usable_cores
from ppo.envs import EnvBatch
from ppo.errors import NonFiniteError, UserError
from ppo.evaluate import Evaluation, evaluate_agent
from ppo.gae import bootstrap_weights, compute_gae
from ppo.interrupts import Interrupted, StopSignals
from ppo.logger import RunLogger
from ppo.losses import explained_variance
from ppo.native.step import NativeEpoch
from ppo.parameters import learning_rate_vector
from ppo.plan import Plan, evaluation_due, nothing_left
from ppo.progress import ProgressView
from ppo.rollout import Rollout, flatten_valid
from ppo.rundir import RunDirectory
from ppo.seeding import Stream, env_seeds
from ppo.stopwatch import Stopwatch
from ppo.storage import damage_named, write_checkpoint
from ppo.update import (
    Coefficients,
    EpochFunction,
    Hyperparameters,
    UpdateMetrics,
    make_step,
    one_by_one,
    update,
)

# Without any end of an episode, after so many iterations it is likely that none will come.
ENDLESS_ITERATIONS = 10


@dataclass(frozen=True)
class Session:
    """What is open while a run trains, and closed when it ends."""

    run: RunDirectory
    envs: EnvBatch
    plan: Plan
    logger: RunLogger
    view: ProgressView
    signals: StopSignals
    stopwatch: Stopwatch


class TrainingLoop:
    """One run from where its state stands to the end of its budget."""

    def __init__(self, config: Config, state: TrainingState, session: Session) -> None:
        self.config, self.state, self.session = config, state, session
        self.plan, self.logger, self.view = session.plan, session.logger, session.view
        self._signals, self.stopwatch = session.signals, session.stopwatch
        self.hyperparameters = Hyperparameters(
            n_epochs=config.ppo.n_epochs,
            batch_size=config.ppo.batch_size,
            clip_range_vf=config.ppo.clip_range_vf,
            normalize_advantage=config.ppo.normalize_advantage,
            vf_coef=config.ppo.vf_coef,
            max_grad_norm=config.ppo.max_grad_norm,
            target_kl=config.ppo.target_kl,
        )
        self.epoch, self.compile_choice = self._epoch_function()
        self.collector = RolloutCollector(
            session.envs,
            generator=state.actions,
            env_steps=state.env_steps,
            verify=config.ppo.check_rollout,
            stopwatch=self.stopwatch,
        )
        self.seconds_compiling = 0.0
        self.metrics: dict[str, float] = {}
        self.snapshot = state.capture(config)
        self.started, self.start_steps = time.monotonic(), state.env_steps
        self.start_iterations = state.iterations
        self.any_termination = self.warned_endless = False

    def run(self) -> Evaluation:
        """Iterate to the end of the budget, then evaluate."""
        self._announce()
        # Before anything happens: a run can always be resumed, and no start is taken for another.
        self._save("last")
        try:
            with self._signals.interruptible():
                self._start_environments()
            while True:
                self._evaluate_if_due()
                if self.state.env_steps >= self.plan.env_steps:
                    break
                self._iterate()
                self._checkpoint_if_due()
            self._save("last")
            self.stopwatch.switch("evaluating")
            with self._signals.interruptible():
                evaluation = evaluate_agent(self.state.agent, self.config)
            self.stopwatch.switch("logging")
        except NonFiniteError as error:
            self._save("last")
            raise NonFiniteError(
                f"{error}; the run is saved as it was at env step"
                f" {self.snapshot['counters']['env_steps']}; go on with: ppo resume"
                f" {self.session.run.path}, with a setting changed"
            ) from error
        except BaseException as error:
            self._save("last")
            # A signal to every process of a job ends the environments' too, and their death may
            # be noticed first.
            interruption = error if isinstance(error, Interrupted) else self._signals.pending()
            if interruption is None:
                raise
            interruption.run_dir = self.session.run.path
            counters = self.snapshot["counters"]
            interruption.env_steps = counters["env_steps"]
            interruption.finished = nothing_left(self.config, counters)
            raise interruption from error.__cause__
        finally:
            self._finish()
        return evaluation

    def _start_environments(self) -> None:
        """Go on with the episodes of the checkpoint, or start new ones."""
        with damage_named("the checkpoint"):
            goes_on = self.collector.load_state(self.state.environments)
        if goes_on:
            return
        seeds = env_seeds(
            self.config.seed,
            Stream.TRAINING_ENVS,
            self.config.env.n_envs,
            attempt=self.state.resumes,
        )
        self.collector.reset(seeds)
        self._note_environments()

    def _note_environments(self) -> None:
        self.state.environments = self.collector.state()
        self.snapshot = self.state.capture(self.config)

    def _iterate(self) -> None:
        """One iteration of PPO (Schulman et al. 2017, algorithm 1)."""
        config, state = self.config, self.state
        coefficients, shown = self._coefficients()
        budget = self.plan.env_steps - state.env_steps
        with self._signals.interruptible():
            collected = self.collector.collect(
                state.agent, config.ppo.n_steps, env_step_budget=budget
            )
            rollout = collected.rollout
            if rollout.n_valid == 0:
                return  # a short rollout of nothing but reset steps: no data
            advantages, returns = self._estimate(rollout, config.ppo.gae_lambda)
            critic = self._critic_metrics(rollout, returns)
            self.stopwatch.switch("learning")
            batch = flatten_valid(rollout, advantages, returns)
            learned: UpdateMetrics | None = None
            last = self.collector.env_steps >= self.plan.env_steps
            if not last or batch.size >= config.ppo.batch_size:
                state.optimizer, learned = update(
                    state.agent.networks,
                    state.optimizer,
                    batch,
                    coefficients,
                    epoch=self.epoch,
                    hyperparameters=self.hyperparameters,
                    generator=state.permutations,
                )
                self._check_finite(learned)
            self.stopwatch.move(self._compiling(), source="learning", target="compiling")
        self.stopwatch.switch("logging")
        self._advance(collected, learned)
        self._note_environments()
        self._log(collected, {**critic, **shown, **_train_metrics(learned)})

    def _compiling(self) -> float:
        """Seconds that this update spent compiling."""
        spent = self.epoch.seconds_compiling if isinstance(self.epoch, CompiledEpoch) else 0.0
        new, self.seconds_compiling = spent - self.seconds_compiling, spent
        return new

    def _estimate(self, rollout: Rollout, gae_lambda: float) -> tuple[Tensor, Tensor]:
        try:
            return compute_gae(
                rollout.learner_rewards,
                rollout.values,
                rollout.next_values,
                rollout.terminated,
                rollout.truncated,
                gamma=self.config.ppo.gamma,
                gae_lambda=gae_lambda,
            )
        except ValueError as error:
            raise NonFiniteError(
                f"the advantages cannot be estimated at env step {self.collector.env_steps}:"
                f" {error}"
            ) from error

    def _critic_metrics(self, rollout: Rollout, returns: Tensor) -> dict[str, float]:
        """How well the critic that collected explains what it collected."""
        valid = rollout.valid
        _, mc_returns = self._estimate(rollout, 1.0)
        weights = bootstrap_weights(
            rollout.terminated, rollout.truncated, gamma=self.config.ppo.gamma
        )
        values = rollout.values[valid]
        return {
            "train/explained_variance": explained_variance(values, returns[valid]),
            "train/explained_variance_mc": explained_variance(values, mc_returns[valid]),
            "train/bootstrap_weight": float(weights[valid].mean()),
        }

    def _coefficients(self) -> tuple[Coefficients, dict[str, float]]:
        """What the schedules say for this iteration."""
        ppo, agent = self.config.ppo, self.state.agent

        def scheduled(initial: float, schedule: str) -> float:
            if schedule != "linear":
                return initial
            return schedules.linear(
                initial, env_steps=self.state.env_steps, total_timesteps=self.plan.env_steps
            )

        learning_rate = (
            self.state.learning_rate
            if ppo.lr_schedule == "adaptive_kl"
            else scheduled(ppo.learning_rate, ppo.lr_schedule)
        )
        critic_factor = (self.config.critic.learning_rate or ppo.learning_rate) / ppo.learning_rate
        clip_range = scheduled(ppo.clip_range, ppo.clip_range_schedule)
        ent_coef = scheduled(ppo.ent_coef, ppo.ent_coef_schedule)
        rates = learning_rate_vector(
            agent.networks, actor=learning_rate, critic=learning_rate * critic_factor
        )
        coefficients = Coefficients(
            rates,
            torch.tensor(clip_range, device=agent.device),
            torch.tensor(ent_coef, device=agent.device),
        )
        return coefficients, {
            "train/learning_rate": learning_rate,
            "train/clip_range": clip_range,
            "train/ent_coef": ent_coef,
        }

    def _check_finite(self, learned: UpdateMetrics) -> None:
        if not learned.finite:
            raise NonFiniteError(
                f"the loss or its gradient is not finite at env step {self.collector.env_steps}"
                f" (iteration {self.state.iterations + 1}); the update was thrown away;"
                " a lower ppo.learning_rate or normalize.rewards may help"
            )

    def _advance(self, collected: Collected, learned: UpdateMetrics | None) -> None:
        state, adaptive = self.state, self.config.ppo.adaptive_kl
        state.env_steps = self.collector.env_steps
        state.iterations += 1
        state.recent.extend(collected.episodes)
        if learned is None:
            return
        state.n_updates += learned.n_updates
        if adaptive is not None:
            state.learning_rate = schedules.adaptive_kl(
                state.learning_rate,
                approx_kl=learned.approx_kl,
                desired_kl=adaptive.desired_kl,
                minimum=adaptive.min_learning_rate,
                maximum=adaptive.max_learning_rate,
            )

    def _log(self, collected: Collected, metrics: Mapping[str, float]) -> None:
        state, elapsed = self.state, time.monotonic() - self.started
        self.metrics = {
            **state.recent.metrics(),
            **metrics,
            "train/n_updates": float(state.n_updates),
            "time/fps": (state.env_steps - self.start_steps) / max(elapsed, 1e-9),
            "time/time_elapsed": elapsed,
            "time/iterations": float(state.iterations),
            "time/total_timesteps": float(state.env_steps),
        }
        self.logger.log_episodes([summary.episode for summary in collected.episodes])
        self.logger.log(self.metrics, env_steps=state.env_steps)
        self.view.update(self.metrics, state.env_steps)
        self._warn_endless(collected.rollout)

    def _warn_endless(self, rollout: Rollout) -> None:
        self.any_termination |= bool(rollout.terminated.any())
        if self.config.ppo.gamma < 1.0 or self.any_termination or self.warned_endless:
            return
        waited = self.state.iterations - self.start_iterations >= ENDLESS_ITERATIONS
        if self.state.recent or waited or self.state.env_steps >= self.plan.env_steps:
            self.warned_endless = True
            warnings.warn(
                "ppo.gamma is 1 and nothing has terminated yet: a return that only a time limit"
                " ends has no bound, so the critic has nothing to converge to",
                stacklevel=2,
            )

    def _evaluate_if_due(self) -> None:
        state = self.state
        if not evaluation_due(self.config, state.env_steps, state.evaluated_at):
            return
        self.stopwatch.switch("evaluating")
        with self._signals.interruptible():
            evaluation = evaluate_agent(state.agent, self.config, stream=Stream.SELECTION_ENVS)
        self.stopwatch.switch("logging")
        state.evaluated_at = state.env_steps
        mean = evaluation.summary()["mean"]
        improved = state.best_return is None or mean > state.best_return
        state.best_return = mean if improved else state.best_return
        self.snapshot = state.capture(self.config)
        self.metrics |= evaluation.metrics()
        self.logger.log(evaluation.metrics(), env_steps=state.env_steps)
        self.view.update(evaluation.metrics(), state.env_steps)
        # `last` says that this evaluation is done, so it comes last: killed before it, a resumed
        # run does all of this again.
        if improved:
            self._save("best")
        self._save("last")
        if evaluation.n_capped:
            self.view.message(
                f"{evaluation.n_capped} of {len(evaluation.episodes)} episodes of the evaluation at"
                f" env step {state.env_steps:,} were stopped by the cap of"
                f" {evaluation.step_cap:,} env steps (eval.max_episode_steps)",
                warning=True,
            )

    def _checkpoint_if_due(self) -> None:
        every, env_steps = self.config.checkpoint.every, self.state.env_steps
        if every == 0 or env_steps // every <= self.state.saved_at // every:
            return
        self.state.saved_at = env_steps
        self.snapshot = self.state.capture(self.config)
        self.logger.flush()
        if self.config.checkpoint.keep:
            self._save(f"step_{env_steps}")
            self.session.run.prune_checkpoints(self.config.checkpoint.keep)
        self._save("last")

    def _finish(self) -> None:
        """Flush and draw; what fails here must not hide how the run ended."""
        self.stopwatch.switch("finishing")
        for task in (self.logger.flush, self._draw):
            try:
                task()
            except (OSError, UserError) as error:
                self.view.message(str(error), warning=True)

    def _draw(self) -> None:
        # Drawing needs matplotlib, which would cost every start a second.
        from ppo.plots import learning_curve

        learning_curve(self.session.run.path)

    def _save(self, name: str) -> None:
        """Write the state at the end of the last iteration."""
        write_checkpoint(self.session.run.path / "checkpoints" / f"{name}.pt", self.snapshot)

    def _epoch_function(self) -> tuple[EpochFunction, CompileChoice]:
        networks = self.state.agent.networks
        # By the whole run, not by what is left of it: a resumed run rounds as a straight one.
        choice = choose(
            self.config.compile,
            gradient_steps=self.plan.gradient_steps,
            device=self.state.agent.device,
        )
        eager = one_by_one(
            make_step(networks, self.hyperparameters), batch_size=self.hyperparameters.batch_size
        )
        if not choice.compiled:
            return eager, choice
        build = partial(
            NativeEpoch, networks, self.hyperparameters, n_threads=min(2, usable_cores())
        )
        return CompiledEpoch(build, eager), choice

    def _announce(self) -> None:
        say = self.view.message
        say(f"run: {self.session.run.path}")
        done = self.state.env_steps
        say(f"plan: {Plan.of(self.config, done=done).describe(self.config, done=done)}")
        how = "compiled" if self.compile_choice.compiled else "eager"
        say(f"update: {how} ({self.compile_choice.reason}), on {self.state.agent.device}")
        if self.state.env_steps:
            say(f"resumed at env step {self.state.env_steps:,}: {self._schedules_in_words()}")

    def _schedules_in_words(self) -> str:
        """What follows from here on, for every value that may change."""
        ppo, (_, values) = self.config.ppo, self._coefficients()
        words = []
        for name, schedule in (
            ("learning_rate", ppo.lr_schedule),
            ("clip_range", ppo.clip_range_schedule),
            ("ent_coef", ppo.ent_coef_schedule),
        ):
            course = f"linear to 0 at {self.plan.env_steps:,}" if schedule == "linear" else schedule
            words.append(f"{name.replace('_', ' ')} {values[f'train/{name}']:.3g}, {course}")
        return "; ".join(words)


def _train_metrics(learned: UpdateMetrics | None) -> dict[str, float]:
    if learned is None:
        return {}
    metrics = {
        "train/policy_gradient_loss": learned.policy_loss,
        "train/value_loss": learned.value_loss,
        "train/entropy_loss": learned.entropy_loss,
        "train/loss": learned.loss,
        "train/approx_kl": learned.approx_kl,
        "train/clip_fraction": learned.clip_fraction,
        "train/grad_norm": learned.grad_norm,
        "train/stopped_early": float(learned.stopped_early),
    }
    return metrics if learned.std is None else {**metrics, "train/std": learned.std}
