"""`make doctor MODEL=name`: can the engine serve this model, and how? Loads it, and compares with `generate`."""

from tools.doctor import FAIL, NOTE, OK, Finding


def check_model(name: str) -> Finding:
    """Load a model from a folder or the hub, and probe it."""
    from lessons_lib.compat.probe import PAGED, probe
    from lessons_lib.models.configuration import UnsupportedModel
    from lessons_lib.models.loading import load_model

    try:
        model, _ = load_model(name)
        result = probe(model)
    except UnsupportedModel as error:
        return Finding("model", "can't be served", FAIL, str(error))
    except OSError as error:
        return Finding("model", "can't be loaded", FAIL, str(error))
    kind = f"{type(model).__name__}, {len(result.layer_shapes)} layers, {model.dtype}"
    if result.way == PAGED:
        return Finding("model", f"{kind}: served from the paged KV cache, equal to `generate`", OK)
    return Finding("model", f"{kind}: served one sequence at a time, equal to `generate`, slowly", NOTE, result.reason)


def main(name: str) -> int:
    """Print what was found; the exit status is 0 if the model can be served."""
    finding = check_model(name)
    print(finding)
    return int(finding.level == FAIL)
