"""One run: collect, estimate, learn; then log, evaluate, keep; repeat."""

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch

from ppo import schedules
from ppo.checkpoint import TrainingState
from ppo.coefficients import Scheduled
from ppo.collector import Collected, RolloutCollector
from ppo.compilation import CompileChoice, CompiledEpoch, choose
from ppo.config import Config
from ppo.cores import usable_cores
from ppo.critic import Decision, Reading
from ppo.envs import EnvBatch
from ppo.errors import NonFiniteError, UserError
from ppo.estimation import Estimate, Estimator, critic_metrics
from ppo.evaluate import Evaluation, evaluate_agent
from ppo.interrupts import Interrupted, StopSignals
from ppo.logger import RunLogger
from ppo.native.step import NativeEpoch
from ppo.plan import Plan, evaluation_due
from ppo.progress import ProgressView
from ppo.rollout import Batch, Rollout
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
    estimator: Estimator


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
            interruption.env_steps = self.snapshot["counters"]["env_steps"]
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
        scheduled = self._scheduled()
        budget = self.plan.env_steps - state.env_steps
        with self._signals.interruptible():
            collected = self.collector.collect(
                state.agent, config.ppo.n_steps, env_step_budget=budget
            )
            rollout = collected.rollout
            if rollout.n_valid == 0:
                return  # a short rollout of nothing but reset steps: no data
            estimated = self._estimate(rollout)
            critic = critic_metrics(estimated, gamma=config.ppo.gamma)
            decision = self._decide(critic)
            self.stopwatch.switch("learning")
            batch = estimated.batch()
            learned: UpdateMetrics | None = None
            last = self.collector.env_steps >= self.plan.env_steps
            if not last or batch.size >= config.ppo.batch_size:
                coefficients = scheduled.coefficients(state.agent, config)
                learned = self._learn(batch, coefficients, decision)
            self.stopwatch.move(self._compiling(), source="learning", target="compiling")
        self.stopwatch.switch("logging")
        self._advance(collected, learned, decision)
        self._note_environments()
        self._log(
            collected,
            {**critic, **scheduled.metrics(), **self._train_metrics(learned, decision)},
        )
        if decision.message is not None:
            self.view.message(decision.message, warning=True)

    def _decide(self, critic: Mapping[str, float]) -> Decision:
        """What the gate makes of the critic, before it is updated."""
        watch, state = self.state.critic, self.state
        watch.readings.append(
            Reading(critic["train/explained_variance_mc"], critic["train/bootstrap_weight"])
        )
        return watch.decide(
            self.config.critic,
            iterations=state.iterations,
            done=state.env_steps / self.plan.env_steps,
        )

    def _learn(self, batch: Batch, coefficients: Coefficients, decision: Decision) -> UpdateMetrics:
        """The update, of both networks or of the critic alone, and the critic's further epochs."""

        def learn(policy_learns: bool, n_epochs: int) -> UpdateMetrics:
            device = coefficients.policy_learns.device
            self.state.optimizer, learned = update(
                self.state.agent.networks,
                self.state.optimizer,
                batch,
                coefficients._replace(policy_learns=torch.tensor(policy_learns, device=device)),
                epoch=self.epoch,
                hyperparameters=replace(self.hyperparameters, n_epochs=n_epochs),
                generator=self.state.permutations,
            )
            self._check_finite(learned)
            return learned

        learned = learn(decision.policy_learns, self.hyperparameters.n_epochs)
        if not decision.extra_value_epochs:
            return learned
        further = learn(False, decision.extra_value_epochs)
        return replace(learned, n_updates=learned.n_updates + further.n_updates)

    def _compiling(self) -> float:
        """Seconds that this update spent compiling."""
        spent = self.epoch.seconds_compiling if isinstance(self.epoch, CompiledEpoch) else 0.0
        new, self.seconds_compiling = spent - self.seconds_compiling, spent
        return new

    def _estimate(self, rollout: Rollout) -> Estimate:
        try:
            return self.session.estimator(self.state.agent, rollout)
        except ValueError as error:
            raise NonFiniteError(
                f"the advantages cannot be estimated at env step {self.collector.env_steps}:"
                f" {error}"
            ) from error

    def _scheduled(self) -> Scheduled:
        return Scheduled.at(
            self.config,
            adapted_rate=self.state.learning_rate,
            env_steps=self.state.env_steps,
            total_timesteps=self.plan.env_steps,
        )

    def _check_finite(self, learned: UpdateMetrics) -> None:
        if not learned.finite:
            raise NonFiniteError(
                f"the loss or its gradient is not finite at env step {self.collector.env_steps}"
                f" (iteration {self.state.iterations + 1}); the update was thrown away;"
                " a lower ppo.learning_rate or normalize.rewards may help"
            )

    def _advance(
        self, collected: Collected, learned: UpdateMetrics | None, decision: Decision
    ) -> None:
        state, adaptive = self.state, self.config.ppo.adaptive_kl
        state.env_steps = self.collector.env_steps
        state.iterations += 1
        state.recent.extend(collected.episodes)
        if learned is None:
            return
        state.n_updates += learned.n_updates
        if adaptive is not None and decision.policy_learns:
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
            course = self._scheduled().describe(self.config, end=self.plan.env_steps)
            say(f"resumed at env step {self.state.env_steps:,}: {course}")

    def _train_metrics(self, learned: UpdateMetrics | None, decision: Decision) -> dict[str, float]:
        if learned is None:
            return {}
        value_only = decision.value_only_epochs(self.hyperparameters.n_epochs)
        return {**learned.scalars(), "train/value_only_epochs": float(value_only)}
