import itertools
import json
import pathlib

import numpy as np
import pytest

from qpr_jax.encoders.cnn_encoder import (
    FORMAT,
    CnnEncoder,
    question_list,
    read_cnn,
    write_cnn,
)
from qpr_jax.errors import UserError
from qpr_jax.files import write_manifest
from qpr_jax.text.tokenizer import tokenize
from qpr_jax.text.vocabulary import Vocabulary

WORDS = tuple(tokenize("what is the best way to learn python how can i quickly"))
VOCABULARY = Vocabulary(WORDS, bins=4)
QUESTIONS = [
    "what is the best way to learn python",
    "",
    "how",
    "how can i learn python quickly",
    "zebra quagga okapi",
    "python " * 30,
]


def weights(windows=(3, 4), filters=(5, 2), seed=0, bag_of_words=False):
    rng = np.random.default_rng(seed)
    features = sum(filters) + 6 * bag_of_words
    sizes = list(zip(windows, filters, strict=True))
    return {
        "embedding": rng.normal(size=(VOCABULARY.size, 6)).astype(np.float32),
        "kernels": [0.3 * rng.normal(size=(w, 6, f)).astype(np.float32) for w, f in sizes],
        "biases": [rng.normal(size=f).astype(np.float32) for _, f in sizes],
        "projection": 0.4 * rng.normal(size=(features, 7)).astype(np.float32),
    }


def export(folder, *, max_words=20, settings=None, normalize=False, **changed) -> CnnEncoder:
    arrays = weights() | changed
    write_cnn(
        folder,
        **arrays,
        vocabulary=VOCABULARY,
        max_words=max_words,
        settings=settings or {"a": 1},
        normalize=normalize,
    )
    return read_cnn(folder)


@pytest.fixture(params=["maxima", "bag_of_words", "normalize"])
def encoder(tmp_path, request) -> CnnEncoder:
    return export(
        tmp_path / "export",
        normalize=request.param == "normalize",
        **weights(bag_of_words=request.param == "bag_of_words"),
    )


def reference(encoder: CnnEncoder, ids: list[int]) -> np.ndarray:
    """Equation (1) word by word, in float64."""
    features = []
    for kernel, bias in zip(encoder.kernels, encoder.biases, strict=True):
        window = len(kernel)
        positions = []
        for i in range(max(len(ids), 1)):
            h = bias.astype(np.float64)
            for k in range(window):
                at = i - window // 2 + k
                if 0 <= at < len(ids):
                    h = h + encoder.embedding[ids[at]].astype(np.float64) @ kernel[k]
            positions.append(np.tanh(h))
        features.append(np.max(positions, axis=0))
    if len(encoder.projection) > sum(len(bias) for bias in encoder.biases):
        features.append(encoder.embedding[ids].sum(axis=0) / np.sqrt(max(len(ids), 1)))
    vector = np.concatenate(features) @ encoder.projection.astype(np.float64)
    return vector / np.linalg.norm(vector) if encoder.normalize else vector


def test_hand_worked_vector(tmp_path):
    # One number a word ("what" 1, "is" 2), window 2: position i sees words i - 1 and i.
    embedding = np.zeros((VOCABULARY.size, 1), np.float32)
    embedding[1:3, 0] = 1, 2
    encoder = export(
        tmp_path / "e",
        embedding=embedding,
        kernels=[np.array([[[0.1]], [[-0.2]]], np.float32)],
        biases=[np.array([0.5], np.float32)],
        projection=np.array([[2.0, -1.0]], np.float32),
    )
    # "what is": positions give -0.2 * 1 and 0.1 * 1 - 0.2 * 2; the first is larger.
    peak = np.tanh(0.5 - 0.2)
    np.testing.assert_allclose(encoder.encode(["what is"]), [[2 * peak, -peak]], rtol=1e-6)
    empty = np.tanh(0.5)
    np.testing.assert_allclose(encoder.encode([""]), [[2 * empty, -empty]], rtol=1e-6)


def test_equals_the_equation_in_any_order(encoder):
    rng = np.random.default_rng(1)
    ids = [rng.integers(1, VOCABULARY.size, size=n).tolist() for n in rng.integers(0, 12, size=200)]
    words = np.zeros((len(ids), 14), np.int32)
    for row, of_row in zip(words, ids, strict=True):
        row[: len(of_row)] = of_row
    expected = np.stack([reference(encoder, of_row) for of_row in ids])
    np.testing.assert_allclose(encoder.encode_words(words), expected, atol=2e-6)


@pytest.mark.parametrize("window", [1, 2, 5, 6, 11])
def test_windows_of_any_width(tmp_path, window):
    encoder = export(tmp_path / "e", **weights((window, 3), (9, 2)))
    words, offsets, _ = VOCABULARY.flat_ids(QUESTIONS, 20)
    ids = [words[start:stop].tolist() for start, stop in itertools.pairwise(offsets)]
    expected = np.stack([reference(encoder, of_one) for of_one in ids])
    np.testing.assert_allclose(encoder.encode(QUESTIONS), expected, atol=2e-6)


def test_many_chunks_on_many_threads_change_nothing(encoder, monkeypatch):
    expected = encoder.encode(QUESTIONS * 50)
    monkeypatch.setattr("qpr_jax.encoders.cnn_encoder._CHUNK", 7)
    monkeypatch.setattr("qpr_jax.encoders.cnn_encoder.cpu_count", lambda: 8)
    np.testing.assert_array_equal(encoder.encode(QUESTIONS * 50), expected)


def test_padding_width_and_batch_never_change_a_vector(encoder):
    together = encoder.encode(QUESTIONS)
    for i, question in enumerate(QUESTIONS):
        alone = encoder.encode([question])[0]
        np.testing.assert_array_equal(alone, together[i])
        words, _ = VOCABULARY.word_ids([question], 20)
        wide = encoder.encode_words(np.pad(words, ((0, 0), (0, 50))))[0]
        np.testing.assert_array_equal(wide, alone)


@pytest.mark.parametrize("filters", [300, 600])
def test_batch_never_changes_a_vector_of_full_size(tmp_path, filters):
    rng = np.random.default_rng(0)
    encoder = export(
        tmp_path / "e",
        embedding=0.3 * rng.normal(size=(VOCABULARY.size, 300)),
        kernels=[0.05 * rng.normal(size=(5, 300, filters))],
        biases=[0.1 * rng.normal(size=filters)],
        projection=0.06 * rng.normal(size=(filters, 300)),
    )
    questions = [" ".join(rng.choice(WORDS, size=n)) for n in rng.integers(0, 20, size=300)]
    together = encoder.encode(questions)
    assert np.abs(together).max() > 1.5
    # Nor does it matter which words were met first.
    fresh = read_cnn(tmp_path / "e")
    alone = np.concatenate([fresh.encode([question]) for question in questions[::-1]])
    np.testing.assert_array_equal(alone[::-1], together)


def test_padding_never_wins_the_maximum(tmp_path):
    # All words give negative numbers, so padding's zeros would win if they were seen.
    embedding = -np.ones((VOCABULARY.size, 1), np.float32)
    encoder = export(
        tmp_path / "e",
        embedding=embedding,
        kernels=[np.ones((1, 1, 1), np.float32)],
        biases=[np.zeros(1, np.float32)],
        projection=np.ones((1, 1), np.float32),
    )
    vectors = encoder.encode(["what", "what is the best way", ""])
    np.testing.assert_allclose(vectors[:, 0], [np.tanh(-1), np.tanh(-1), 0], rtol=1e-6)


def test_shapes_and_cut_questions(encoder):
    assert encoder.dimension == 7
    empty = encoder.encode([])
    assert empty.shape == (0, 7)
    assert empty.dtype == np.float32
    assert encoder.encode_words(np.zeros((0, 3), np.int32)).shape == (0, 7)
    cut, longer = encoder.encode(["python " * 20, "python " * 20 + "what is the"])
    np.testing.assert_array_equal(cut, longer)


def test_odd_strings_have_vectors(encoder):
    odd = ["\x00", "\ud800", "🦓🦓", "سؤال", "é" * 1000, "a" * 1_000_000, "\r\n\t", "e\u0301"]
    vectors = encoder.encode(odd)
    assert vectors.shape == (len(odd), 7)
    assert np.isfinite(vectors).all()


def test_any_list_of_strings_will_do(encoder):
    expected = encoder.encode(QUESTIONS)
    np.testing.assert_array_equal(encoder.encode(tuple(QUESTIONS)), expected)
    np.testing.assert_array_equal(encoder.encode(np.array(QUESTIONS)), expected)


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ("what is", r"`questions`: expected a list of strings, got a str; pass \[questions\]"),
        (b"what is", "got a bytes"),
        ({"what": 1}, "got a dict"),
        (None, "expected a list of strings, got NoneType"),
        (7, "got int"),
        (["what", None], "expected strings, got NoneType at position 1; leave it out"),
        ([b"what"], "got bytes at position 0"),
        ([["what"]], "got list at position 0"),
        ([float("nan")], "got float at position 0"),
    ],
)
def test_what_is_not_a_list_of_strings_is_refused(encoder, questions, message):
    with pytest.raises(UserError, match=message):
        encoder.encode(questions)
    with pytest.raises(UserError, match=message):
        question_list(questions)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (np.zeros(3, np.int32), r"expected integers \[n, L\], got int32 \[3\]"),
        (np.zeros((2, 0), np.int32), r"got int32 \[2, 0\]"),
        (np.zeros((2, 3)), "got float64"),
        (np.array([[1, 17]]), "expected ids from 0 to 16, got 1 to 17"),
        (np.array([[-1, 0]]), "got -1 to 0"),
    ],
)
def test_wrong_word_ids_are_refused(encoder, words, message):
    assert VOCABULARY.size == 17
    with pytest.raises(UserError, match=message):
        encoder.encode_words(words)


def test_export_comes_back_whole(tmp_path):
    arrays = weights()
    encoder = export(tmp_path / "a" / "export", settings={"filters": [5, 2]})
    assert encoder.vocabulary == VOCABULARY
    assert encoder.max_words == 20
    assert encoder.settings == {"filters": [5, 2]}
    np.testing.assert_array_equal(encoder.embedding[0], np.zeros(6))
    np.testing.assert_array_equal(encoder.embedding[1:], arrays["embedding"][1:])
    for got, given in zip(encoder.kernels, arrays["kernels"], strict=True):
        np.testing.assert_array_equal(got, given)
    for got, given in zip(encoder.biases, arrays["biases"], strict=True):
        np.testing.assert_array_equal(got, given)
    np.testing.assert_array_equal(encoder.projection, arrays["projection"])
    names = {path.name for path in (tmp_path / "a" / "export").iterdir()}
    assert names == {"encoder.npz", "vocabulary.json", "settings.json", "manifest.json"}
    manifest = json.loads((tmp_path / "a" / "export" / "manifest.json").read_text())
    assert manifest["format"] == FORMAT == "qpr_jax encoder 1"


def test_identity_names_what_decides_the_vectors(tmp_path):
    first = export(tmp_path / "a").identity
    assert len(first) == 64
    assert export(tmp_path / "b", settings={"other": 2}).identity == first
    (tmp_path / "a").rename(tmp_path / "moved")
    assert read_cnn(tmp_path / "moved").identity == first
    assert export(tmp_path / "c", max_words=21).identity != first
    other = {**weights(), "biases": weights(seed=1)["biases"]}
    assert export(tmp_path / "d", **other).identity != first


def test_write_export_returns_the_identity(tmp_path):
    identity = write_cnn(
        tmp_path / "e", **weights(), vocabulary=VOCABULARY, max_words=3, settings={}
    )
    assert identity == read_cnn(tmp_path / "e").identity


def test_half_precision_weights_are_stored_as_float32(tmp_path):
    arrays = weights()
    encoder = export(tmp_path / "e", projection=arrays["projection"].astype(np.float16))
    assert encoder.projection.dtype == np.float32


@pytest.mark.parametrize(
    "changed",
    [
        {"embedding": np.zeros((16, 6))},  # not the vocabulary's 17 rows
        {"embedding": np.zeros((17, 5))},  # not what the kernels take
        {"kernels": [np.zeros((3, 6, 5)), np.zeros((4, 6))]},
        {"kernels": [np.zeros((3, 6, 5)), np.zeros((0, 6, 2))]},
        {"biases": [np.zeros(5), np.zeros(3)]},
        {"projection": np.zeros((8, 7))},
        {"projection": np.zeros((7, 0))},
        {"projection": np.zeros(7)},
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path, changed):
    with pytest.raises(UserError, match="do not fit each other and a vocabulary of 17 ids"):
        export(tmp_path / "e", **changed)
    assert list(tmp_path.iterdir()) == []


def test_weights_that_are_not_finite_are_refused(tmp_path):
    with pytest.raises(UserError, match="`projection` is not finite float32"):
        export(tmp_path / "e", projection=np.full((7, 7), np.nan))


@pytest.mark.parametrize("max_words", [0, -1, 2.5, True, "64"])
def test_wrong_max_words_is_refused(tmp_path, max_words):
    with pytest.raises(UserError, match="`max_words`: expected 1 or more, got"):
        export(tmp_path / "e", max_words=max_words)


@pytest.mark.parametrize("name", ["encoder.npz", "vocabulary.json", "settings.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_damaged_files_are_refused(tmp_path, name, damage):
    export(tmp_path / "e")
    path: pathlib.Path = tmp_path / "e" / name
    data = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
        message = "the file is missing"
    elif damage == "cut":
        path.write_bytes(data[:-1])
        message = f"expected {len(data)} bytes, got {len(data) - 1}"
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        message = "the bytes differ from their SHA-256"
    with pytest.raises(UserError, match=f"{name}: {message}"):
        read_cnn(tmp_path / "e")


def resign(folder: pathlib.Path) -> None:
    write_manifest(folder, ["encoder.npz", "vocabulary.json", "settings.json"], format=FORMAT)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("encoder.npz", b"no zip", "encoder.npz holds no arrays"),
        ("encoder.npz", b"", "encoder.npz holds no arrays"),
        ("encoder.npz", b"\x80\x04N.", "encoder.npz holds no arrays"),  # a pickle
        ("vocabulary.json", b'{"words": ["a"], "bins": 4}', "do not fit each other"),
        ("settings.json", b"{", "settings.json is not JSON"),
        ("settings.json", b"[]", "settings.json lacks `settings`"),
        ("settings.json", b'{"settings": {}}', "`max_words`: expected 1 or more, got None"),
    ],
)
def test_files_with_a_true_hash_but_a_wrong_content_are_refused(tmp_path, name, data, message):
    export(tmp_path / "e")
    (tmp_path / "e" / name).write_bytes(data)
    resign(tmp_path / "e")
    with pytest.raises(UserError, match=message):
        read_cnn(tmp_path / "e")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra": np.zeros(2, np.float32)}, "unexpected weights"),
        ({"bias_0": None}, "unexpected weights"),
        ({"bias_0": np.zeros(5)}, "`bias_0` is not finite float32"),
        ({"embedding": np.ones((17, 6), np.float32)}, "do not fit"),  # row 0 is not padding
    ],
)
def test_wrong_arrays_are_refused(tmp_path, change, message):
    export(tmp_path / "e")
    with np.load(tmp_path / "e" / "encoder.npz") as file:
        arrays = dict(file) | change
    kept = {name: array for name, array in arrays.items() if array is not None}
    np.savez(tmp_path / "e" / "encoder.npz", **kept)
    resign(tmp_path / "e")
    with pytest.raises(UserError, match=message):
        read_cnn(tmp_path / "e")


def test_a_folder_that_is_no_export_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"expected a folder with a manifest\.json, found none"):
        read_cnn(tmp_path)
    write_manifest(tmp_path, [], format="another format 3")
    with pytest.raises(UserError, match="expected format 'qpr_jax encoder 1', got 'another"):
        read_cnn(tmp_path)
