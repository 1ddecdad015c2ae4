"""The table of findings: what each is about, the evidence that proves it, and the right programs that it must exclude.

A cause is *found* where its evidence is complete. Where a right program of the table could have computed what was seen,
it is *suspicious*. The list in `docs/check.md` is written from this table, and a test holds that each cause has a wrong
and a right script in the corpus.

    python -c "from zerosim.torch.check import causes; print(causes.table())"
"""

from typing import Any, NamedTuple


class Cause(NamedTuple):
    """A cause of findings: `excluded` are right programs, `wrong` and `right` are scripts of the corpus.

    `evidence` is empty if a right program can always do the same; `needs` are what must be known of a gradient.
    """

    what: str
    evidence: str
    excluded: str
    wrong: str
    right: str
    needs: tuple[str, ...] = ()

    @property
    def proof(self) -> str:
        """All that a finding needs."""
        return "; ".join(filter(None, [*(NEEDS[need] for need in self.needs), self.evidence]))


NEEDS = {
    "trained": "a trainer reduces over the ranks",
    "no parts": "the ranks hold no parts of one model",
    "bound": "the gradient is this wrong program's within its bound of rounding",
    "trainer": "a trainer reduced it, by no hook of the script",
    "untouched": "the script wrote nothing into it",
    "together": "weights are sharded, or all ranks have ended and the script has never communicated as many elements "
                "as weights have, or some micro-batches of a step are reduced and others are not",
    "scaler": "GradScaler has multiplied the loss",
}
TRAINER = "bound", "trainer", "untouched"
TABLE: dict[str, dict[str, tuple[Any, ...]]] = {
    "initial weights": {
        "other initial weights": ("ranks that reduce gradients together begin with other bits, or shards are of models "
            "with different values", "parts of a model; models of their own; buffers", "fsdp_other_seeds",
            "buffer_of_the_rank", ("no parts",)),
    },
    "replicas": {
        "replicas have drifted apart": ("weights of equal beginning have other bits later", "local SGD; parts of a "
            "model by hand", "weights_touched_on_a_rank", "averaged_after_the_checked_steps", ("no parts", "together")),
        "a model without an optimizer differs": ("it is sharded, and all its shards change on some ranks and none on "
            "another", "copies that rank 0 alone needs", "averages_of_shards_on_rank_0", "averages_on_all_ranks"),
    },
    "inputs": {
        "the same samples": ("two ranks compute the same bits of every gradient in each of at least two steps",
            "prompts that all ranks share; one sample with noise of each rank", "ddp_same_batch",
            "prompts_on_all_ranks", ("trained",)),
        "samplers of other orders": ("", "samplers that draw from the whole set", "sampler_seeded_by_rank", "sampled"),
        "the same samples every epoch": ("", "an order that is fixed on purpose", "set_epoch_forgotten",
            "evaluation_within_an_epoch"),
        "batches overlap": ("three new batches in a row are those that another rank had before, fewer batches ago than "
            "there are ranks", "loaders that begin again; ranks that begin at places of their own",
            "batches_advance_by_one", "sampled"),
        "batches of unequal size": ("", "losses weighted by samples; the last batch of a loader",
            "a_smaller_batch_on_a_rank", "ddp"),
        "a rank with fewer micro-batches": ("", "losses divided by the tokens of all ranks", "fewer_micro_batches",
            "ddp_accumulating"),
        "a micro-batch without a backward": ("", "a forward for a metric", "pipeline_loses_a_micro_batch",
            "pipeline_ScheduleGPipe"),
        "different samples in a tensor-parallel group": ("ranks that hold parts of the same layers were given "
            "different batches", "plans that take shards of a batch", "tensor_parallel_on_different_samples",
            "sequence_parallel"),
    },
    "weights of the forward": {
        "another model in parts": ("outputs of a tensor-parallel group differ, and the script reduces nothing",
            "partial outputs that the script adds", "tensor_parallel_without_the_reduction", "tensor_parallel_clipped"),
    },
    "gradient": {
        "own gradient only": ("", "local SGD", "no_sync_forgotten", "averaged_after_the_checked_steps",
            ("bound", "together")),
        "own part only": ("", "parameters of the rank's own heads", "norm_outside_the_plan",
            "summed_over_the_tensor_ranks"),
        "a loss is summed in place": ("", "a loss that is multiplied by the ranks again", "loss_summed_in_place",
            "loss_printed_as_a_mean"),
        "N times the mean": ("", "losses divided by the batch of all ranks", "micro_batches_reduced_again",
            "losses_divided_by_the_whole_batch", TRAINER),
        "divided twice": ("", "gradients scaled by the script", "ddp_divided_again", "weighed_by_samples", TRAINER),
        "multiplied by a constant": ("", "a loss, or gradients, that the script scales by hand",
            "multiplied_in_each_step", "written_through_data"),
        "a rank counts more than once": ("", "gradients weighted by samples", "hook_doubles_a_rank",
            "weighed_by_samples", TRAINER),
        "a rank is missing from the mean": ("", "a rank without samples", "by_hand_without_a_rank", "mean_by_hand",
            TRAINER),
        "the mean of a smaller group": ("", "local SGD; models of their own", "fsdp_within_rows_of_the_mesh_only",
            "hsdp", ("bound", "together")),
        "gradient of the last micro-batch only": ("the others, on their own batches, by the same line and weights, are "
            "lost in every one of several steps, or not cleared by the script", "PCGrad; per-sample clipping; "
            "gradients that are only looked at", "ddp_zero_grad_in_the_loop", "per_sample_clipping",
            ("bound", "untouched")),
        "gradient of the first micro-batch only": ("", "", "first_micro_batch_only", "ddp_accumulating", TRAINER),
        "zero_grad is missing": ("", "gradients that decay as a momentum", "ddp_zero_grad_missing",
            "two_optimizers_share_a_head", ("bound", "untouched")),
        "not unscaled": ("", "a factor by hand, before Adam", "scaler_without_its_step", "scaled_by_hand",
            ("bound", "scaler")),
        "unscaled twice": ("", "", "unscaled_by_hand_too", "ddp_scaler_autocast_half", ("bound", "scaler")),
        "no gradient": ("backwards had gradients, and the optimizer has none", "layers held still",
            "fsdp_never_reduces", "last_layer_held_still_at_first", ("untouched",)),
        "no order of addition explains it": ("farther from the mean than the bound, with all terms observed",
            "gradients changed by the script, or by its hook", "a_collective_is_off", "written_through_data",
            ("untouched", "no parts")),
    },
    "clipping": {
        "clipping on one rank": ("ranks held the same gradient before, and one has clipped it", "norms that are only "
            "printed", "clipped_on_rank_0", "norm_printed_on_rank_0"),
        "clipping before unscaling": ("GradScaler's factor was in the gradients, and they were clipped to less than a "
            "1,024th of it", "a largest norm that is multiplied by the factor", "clipped_before_unscaling",
            "clipped_at_the_scale"),
        "clipping by the local norm": ("shards of one gradient were multiplied by factors of their own", "gradients "
            "clipped by each rank before the reduction", "fsdp1_clipped_as_if_whole", "fsdp", ("bound",)),
        "another norm": ("the factor is not that of the norm of exactly the clipped gradients, within a bound of that "
            "norm's rounding, and the script has not given another", "norms over several optimizers, or over "
            "parameters without one", "clipped_by_half_the_norm", "clipped_over_two_optimizers"),
        "a norm is summed over replicas": ("", "sums that are divided by the ranks again", "norm_summed_over_replicas",
            "clipped_by_hand_over_all_shards"),
    },
    "update": {
        "another learning rate on a rank": ("a setting differs between ranks that reduce gradients together",
            "settings of the script's own", "other_learning_rate", "ddp"),
        "optimizer state is lost": ("the state of a parameter is gone, or counts fewer updates, on some ranks only",
            "state that all ranks forget", "state_of_a_shard_is_lost", "zero_redundancy"),
        "fp16 overflow skipped on one rank": ("GradScaler skipped an update on some ranks only", "ranks with models of "
            "their own", "overflow_on_a_rank", "ddp_scaler_autocast_half", ("trained",)),
        "unequal numbers of updates": ("all ranks have ended, and their numbers of updates of the same parameters "
            "differ", "ranks with other tasks", "update_on_rank_0", "joined", ("trained",)),
        "a parameter is never changed": ("", "updates that round to nothing", "update_skips_parameters",
            "a_gain_of_zero"),
        "updates are rounded away": ("", "a few updates that round to nothing", "bfloat16_without_a_master",
            "fsdp_bfloat16_throughout"),
        "an update mixes a shard's elements": ("", "blocks on purpose", "orthogonal_by_shards", "orthogonal_updates"),
        "the learning rate is 0": ("", "a warm-up", "rate_of_zero", "ddp"),
        "the scheduler steps once per rank": ("", "a schedule in micro-batches", "scheduler_steps_too_often",
            "scheduled"),
    },
    "parameters": {
        "a parameter that no optimizer has": ("", "layers that are held still", "head_forgotten", "head_trained_alone"),
        "a parameter never gets a gradient": ("", "branches that are not used, or layers held still",
            "adapters_below_a_checkpoint", "unused_parameters"),
        "tied weights are apart": ("", "weights that are untied on purpose", "untied_after_wrapping",
            "fsdp1_wrapped_by_layers_clipped_in_bfloat16"),
        "an unregistered parameter": ("", "weights of a module that is not called", "fsdp_layers_in_a_list", "ddp"),
        "a parameter is frozen on one rank": ("ranks that reduce gradients together differ in requires_grad",
            "ranks with models of their own", "frozen_on_a_rank", "ddp"),
        "all parameters are frozen": ("", "stages of a training", "everything_frozen", "ddp"),
        "optimizer built before sharding": ("no parameter of the optimizer belongs to the model that trains, and none "
            "has a gradient", "", "optimizer_before_sharding", "fsdp"),
    },
}
"""For each subject its causes, with what a `Cause` has."""
CAUSES = {name: Cause(what, *row) for what, rows in TABLE.items() for name, row in rows.items()}


def table() -> str:
    """The causes as a list of Markdown, by subject; in italics those that are always suspicious."""
    return "\n".join(f"- **{what}**: " + "; ".join(name if CAUSES[name].proof else f"*{name}*" for name in rows)
                     for what, rows in TABLE.items())
