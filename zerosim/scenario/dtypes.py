"""The keys for the dtypes and wire formats of a row: the conditions that they must satisfy together."""

from zerosim.errors import ScenarioError
from zerosim.scenario.origin import Origin
from zerosim.scenario.sections import Parallel, Train

NARROWER = {
    "accumulate_dtype": "weights", "reduce_dtype": "weights", "output_dtype": "weights",
    "quantized_weights": "none", "quantized_gradients": "none"}
"""Keys that may name fewer bits than float64 has, and their other value."""


def check_dtypes(parallel: Parallel, train: Train, ranks: int, origin: Origin) -> None:
    """Raises `ScenarioError` if a dtype would lose bits of another, or a collective does not support wire formats."""
    for key, otherwise in NARROWER.items():
        if train.precision == "fp64" and (dtype := getattr(parallel, key)) != otherwise:
            raise origin.error(
                f"parallel.{key} {dtype} has fewer bits than the gradients of train.precision fp64; leave it at "
                f"{otherwise}", ("parallel", key), ("train", "precision"))
    if train.precision != "fp32" and parallel.param_dtype != "weights":
        raise origin.error(
            f"parallel.param_dtype {parallel.param_dtype} casts float32 shards before the all-gather, but "
            f"train.precision {train.precision} keeps none; set train.precision to fp32, or param_dtype to weights",
            ("parallel", "param_dtype"), ("train", "precision"))
    check_autocast(parallel, train, origin)
    check_quantized_gradients(parallel, ranks, origin)
    if parallel.all_gather and parallel.quantized_weights != "none":
        raise leave_one_out("quantized_weights", "sends shards of bytes by the all-gather of parallel.order",
                            "all_gather", origin)


def check_autocast(parallel: Parallel, train: Train, origin: Origin) -> None:
    """Raises `ScenarioError` if weights are not float32, or are cast twice."""
    if parallel.autocast == "none":
        return
    if train.precision != "fp32":
        raise origin.error(
            f"parallel.autocast {parallel.autocast} casts float32 weights for each operation, but train.precision "
            f"{train.precision} has none; set train.precision to fp32, or autocast to none",
            ("parallel", "autocast"), ("train", "precision"))
    if parallel.param_dtype != "weights":
        raise origin.error(
            f"parallel.autocast {parallel.autocast} casts weights for each operation, and parallel.param_dtype "
            f"{parallel.param_dtype} casts them before the all-gather; remove one of them",
            ("parallel", "autocast"), ("parallel", "param_dtype"))


def check_quantized_gradients(parallel: Parallel, ranks: int, origin: Origin) -> None:
    """Raises `ScenarioError` if chunks are not sent one by one, each in one message."""
    if parallel.quantized_gradients == "none":
        if parallel.error_feedback:
            raise origin.error(
                "parallel.error_feedback adds the errors of quantised gradients, but parallel.quantized_gradients is "
                "none; name a format there, or set error_feedback to false",
                ("parallel", "error_feedback"), ("parallel", "quantized_gradients"))
        return
    if parallel.order in ("tree", "exact"):
        raise origin.error(
            f"parallel.quantized_gradients encodes chunks that are sent one by one, and order {parallel.order} sends "
            "none; set order to ring, rank, two_level or two_hop", ("parallel", "quantized_gradients"),
            ("parallel", "order"))
    if parallel.group_of(ranks) != ranks:
        raise origin.error(
            "parallel.quantized_gradients adds over all ranks at once, but shard_ranks or replicas makes several "
            "groups; remove one of them", ("parallel", "quantized_gradients"), ("parallel", "shard_ranks"))
    if parallel.bucket_mb:
        raise leave_one_out("quantized_gradients", "encodes a whole chunk", "bucket_mb", origin)
    if parallel.reduce_scatter:
        raise leave_one_out("quantized_gradients", "sends chunks by the reduce-scatter of parallel.order",
                            "reduce_scatter", origin)


def leave_one_out(key: str, why: str, other: str, origin: Origin) -> ScenarioError:
    return origin.error(f"parallel.{key} {why}, and parallel.{other} conflicts with it; remove one of them",
                        ("parallel", key), ("parallel", other))
