from qpr_jax.training.early_stopping import EarlyStopping


def after(scores, min_delta=0.0):
    state = EarlyStopping()
    for step, score in enumerate(scores, start=1):
        state = state.update(step, score, min_delta=min_delta)
    return state


def test_the_best_is_the_first_of_the_highest_scores():
    state = after([0.5, 0.7, 0.7, 0.6])
    assert (state.best_step, state.best_score, state.without_gain) == (2, 0.7, 2)


def test_a_gain_below_min_delta_is_the_best_but_no_gain():
    state = after([0.5, 0.505, 0.509], min_delta=0.01)
    assert (state.best_step, state.without_gain) == (3, 2)
    assert after([0.5, 0.505, 0.52], min_delta=0.01).without_gain == 0


def test_small_gains_add_up_to_one():
    assert after([0.5, 0.506, 0.512], min_delta=0.01).without_gain == 0
