"""Observes the update: what an optimizer is about to use, and what it has done with it."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import lr_scheduler

from zerosim.torch.check.adapters import deepspeed_gradient, deepspeed_obstacle
from zerosim.torch.check.backward import Backwards
from zerosim.torch.check.record import Remark, Step, Weights
from zerosim.torch.check.sketch import digest
from zerosim.torch.check.tensors import local, parameters_of, sample_of, script_line, settings_of
from zerosim.torch.check.wrapping import Wrapping


class Updates(Backwards, Wrapping):
    """The updates of all optimizers; DeepSpeed's engine is one, and those within it are not followed."""

    def observe(self) -> None:
        super().observe()
        self.updating = 0
        self.samples: dict[str, tuple[Any, Any, Any]] = {}
        """Of each parameter that is about to be updated: it, and samples of it and of its gradient."""
        self.talked = 0
        """The calls of collectives before the update."""
        self.scheduled: dict[int, dict[int, int]] = {}
        """For each optimizer, how often each of its schedulers has stepped since the last update."""

        self.watch(torch.optim.Optimizer, "__init__", None, lambda _, args, *__: (
            self.asleep or self.wrapping or self.step_of(args[0])))
        self.watch(torch.amp.GradScaler, "step", self.before_scaled_step, self.after_scaled_step)
        self.watch(lr_scheduler.LRScheduler, "step", self.schedule)
        self.watch_updates(self.before_update, self.after_update, self.see, self.end)

    def schedule(self, args: Any, kwargs: Any) -> None:
        counts = self.scheduled.setdefault(id(args[0].optimizer), {})
        counts[id(args[0])] = counts.get(id(args[0]), 0) + 1

    def before_update(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """An optimizer is about to step. What a closure does comes within the step: it is followed by a look."""
        if self.failed or self.asleep:
            return None
        self.updating += 1
        self.talked = self.talks
        closure = next(filter(callable, (*args[1:], *kwargs.values())), None)
        if self.updating > 1 or closure is None:
            self.safely(self.see, optimizer)
            return None

        def evaluated() -> Any:
            loss = closure()
            self.safely(self.see, optimizer)
            self.samples = {}  # weights change later
            self.safely(self.close, optimizer)
            return loss

        return (tuple(evaluated if argument is closure else argument for argument in args),
                {key: evaluated if argument is closure else argument for key, argument in kwargs.items()})

    def after_update(self, optimizer: Any, *_: Any) -> None:
        if self.asleep:
            return
        self.updating -= 1
        if not self.updating:
            self.end(optimizer, close=bool(self.step_of(optimizer).parameters))

    def end(self, optimizer: Any, skipped: bool = False, close: bool = True) -> None:
        """The update of an optimizer is over."""
        if close:
            self.close(optimizer, skipped)
        number = self.step_of(optimizer).optimizer
        self.facts.updates[number] = self.facts.updates.get(number, 0) + 1
        self.open.pop(number, None)
        self.reduced = None
        self.scheduled.pop(id(optimizer), None)

    def before_scaled_step(self, args: Any, kwargs: Any) -> tuple[int, int]:
        step = self.step_of(args[1])
        step.line = script_line()
        return step.optimizer, self.facts.updates.get(step.optimizer, 0)

    def after_scaled_step(self, before: tuple[int, int] | None, args: Any, kwargs: Any, result: Any) -> None:
        """A scaler skips `optimizer.step()` when a gradient has overflowed."""
        if before is not None and self.facts.updates.get(before[0], 0) == before[1]:
            self.end(args[1], skipped=True)

    def see(self, optimizer: Any) -> None:
        """Write down what an update is about to use."""
        names = self.names
        if not self.active or self.updating > 1:
            return
        step = self.step_of(optimizer)
        own = [parameter for parameter in parameters_of(optimizer) if parameter not in names.lent]
        step.line = script_line()
        step.parameters = [name for parameter in own for name in names.within(parameter)] or ["?"]
        step.gradients = self.sketches(parameters_of(optimizer), lambda parameter: parameter.grad if (
            parameter.grad is not None or not isinstance(optimizer, nn.Module)) else deepspeed_gradient(parameter))
        unused = {name: [seen for seen in self.terms.get(name, ()) if step.optimizer not in seen.used]
                  for name in step.parameters}
        step.terms = {name: [seen.term for seen in terms] for name, terms in unused.items() if terms}
        step.batches, step.passes = self.batches, (self.forwards, len(self.returned))
        step.schedules = max(self.scheduled.get(id(optimizer), {}).values(), default=0)
        scale = next((seen.scale for terms in unused.values() for seen in terms if seen.scale is not None), None)
        if scale is not None:
            step.scaler = True
            self.number(scale, vars(step), "scale")
        elif self.half and self.factor >= 128 and self.factor.hex().startswith("0x1.0000000000000p"):
            step.scale = self.factor
        step.share = self.factor
        if self.counted is not None:
            self.number(self.counted, vars(step), "count")
        step.within = getattr(optimizer, "grad_scale", None) is not None
        step.settings = [settings_of(group) for group in getattr(optimizer, "param_groups", ())]
        step.reasons = [*self.reasons, *filter(None, [deepspeed_obstacle(optimizer)])]
        if any(self.hooked[parameter].id in [*parameter._backward_hooks][:-1] for parameter in own
               if parameter in self.hooked and parameter._backward_hooks):
            step.reasons.append("a hook of the script changes gradients after the check has seen them")
        step.touched |= not isinstance(optimizer, nn.Module) and any(  # DeepSpeed's engine reduces in such hooks
            getattr(parameter, "_post_accumulate_grad_hooks", None) for parameter in own)
        step.states = self.states(optimizer)
        if not step.clips:
            self.notice_touched(optimizer)
        self.note_weights(step, own)
        self.note_wrapped()
        step.remarks += self.remarks

    def note_weights(self, step: Step, own: list[Any]) -> None:
        """Digests of the weights that an update is about to change, and now and then of those that no optimizer has."""
        names = self.names
        updates = sum(self.facts.updates.values())
        optimized = {id(parameter) for parameter in self.optimized()}
        elements = sum(parameter.numel() for parameter in own)
        self.facts.elements = min(self.facts.elements or elements, elements)
        if not updates & (updates + 1):  # 0, 1, 3, 7, …
            names.note_copies({id(tensor) for optimizer, parameters in self.known() for tensor in (
                *(parameter.grad for parameter in parameters),
                *(value for state in self.states_of(optimizer).values() for value in state.values()))})
        for parameter in list({id(known): known for known in (*names.of, *names.flat)}.values()):
            if parameter in names.lent:
                continue
            for name, values, shape, key in names.pieces(parameter, parameter):
                if name in step.parameters:
                    target = step.weights
                elif updates & (updates + 1) or id(parameter) in optimized or parameter in names.parts:
                    continue
                else:
                    target = step.others
                weights = target[name] = Weights(key, parameter.requires_grad, values.element_size() < 4)
                self.number(digest(values, shape, key), vars(weights), "bits")
        if self.updating == 1:
            self.samples = {names.within(parameter)[0]: (parameter, sample_of(parameter).clone(),
                                                         sample_of(parameter.grad).clone())
                            for parameter in own if parameter.grad is not None and parameter not in names.flat
                            and parameter.grad.layout is torch.strided}

    def states_of(self, optimizer: Any) -> dict[Any, dict[str, Any]]:
        """The state that an optimizer has of each parameter."""
        state = getattr(getattr(optimizer, "optim", optimizer), "state", None)
        known = state.items() if isinstance(state, dict) else ()
        return {parameter: values for parameter, values in known if isinstance(values, dict)}

    def states(self, optimizer: Any) -> dict[str, float]:
        """The parameters with optimizer state, with the number of their updates where that needs no wait."""
        counts = {self.names.of[weight]: state.get("step", -1) for weight, state in self.states_of(optimizer).items()
                  if weight in self.names.of and state}
        return {name: -1.0 if isinstance(count, torch.Tensor) and not count.is_cpu else float(count)
                for name, count in counts.items()}

    def close(self, optimizer: Any, skipped: bool = False) -> None:
        """End the step of an optimizer: copy what is on devices, and write it. Its terms are used up."""
        samples, self.samples = self.samples, {}
        if not self.active:
            return self.begin()
        step = self.step_of(optimizer)
        step.skipped, step.states_after = skipped, len(self.states(optimizer))
        for name, (parameter, before, gradient) in samples.items():
            now = sample_of(parameter)
            if name in step.weights and len(now) == len(before) == len(gradient):
                moved, plain = (now != before) & (gradient != 0), gradient * before > 0
                self.later(torch.stack([(gradient != 0).sum(), moved.sum(), (moved & plain).sum(), (
                    (now - before) * gradient * plain > 0).sum()]), partial(
                        self.note_moved, step, name, isinstance(parameter, DTensor) and parameter.dim() > 1
                        and local(parameter).numel() < parameter.numel() and self.talks == self.talked))
        updated = {name for parameter in self.optimized() for name in self.names.within(parameter)}
        unused = {name for name, terms in self.terms.items() if any(not seen.used for seen in terms)}
        orphans = unused - updated if updated else set()
        order = list(self.names.of.values())
        step.orphans = [name for name in order if name in orphans]
        trained = [name in updated for name in order if name in orphans | updated]
        step.ahead = bool(orphans) and trained == sorted(trained)
        self.copy()
        self.write(step)
        for name in (*step.orphans, *step.parameters):
            for seen in self.terms.get(name, ()):  # another optimizer may use it, and the script clear it before
                seen.used.add(step.optimizer)
                seen.term = replace(seen.term)
        self.begin()
        self.open[step.optimizer] = Step(step.optimizer, step.number)
        return None

    def note_moved(self, step: Step, name: str, of_shard: bool, counts: Any) -> None:
        """Keep how many sampled elements had a gradient, and have moved; of a first update of a shard by itself, how.

        Whatever an optimizer does with each element by itself, its first update makes one smaller that has the sign of
        its gradient.
        """
        weights = step.weights[name]
        weights.due, weights.moved, plain, along = map(int, counts)
        if of_shard and name not in step.states and max(64, plain) < 10 * along < 9 * plain:
            step.remarks.append(Remark(
                "an update mixes a shard's elements", f"the first update of {name} makes {along} of {plain} sampled "
                "elements larger that have the sign of their gradient: it is no update of each element by itself, such "
                "as Adam's, and nothing was communicated: each rank computes it from its own rows", step.line, name))
