from qpr_jax.training.early_stopping import EarlyStopping


def after(scores):
    state = EarlyStopping()
    for step, score in enumerate(scores, start=1):
        state = state.update(step, score)
    return state


def test_the_first_of_equal_scores_is_the_best():
    assert after([0.1, 0.5, 0.5, 0.2]) == EarlyStopping(2, 0.5, 2)
    assert after([0.1, 0.5, 0.2, 0.6]) == EarlyStopping(4, 0.6, 0)
