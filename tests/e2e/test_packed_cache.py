"""--packed-cache-dir: the same bits with and without it, and nothing that is wrong with it keeps a server from starting."""
import pytest

from harness import DEMO, WAIT_S, Server

BODY = {"prompt": "Once upon a time", "max_tokens": 16, "temperature": 0, "logprobs": 3}
QUANTIZE = ["none", "q8_0", "q4_0"]


def answer(server):
    status, _, found = server.post("/v1/completions", BODY)
    assert status == 200, found
    return found["choices"][0]["text"], found["choices"][0]["logprobs"]


def serve(*arguments):
    """The answer, with the logits' bits in its logprobs, and what was logged of the cache."""
    with Server(*arguments) as server:
        found = answer(server)
        return found, "".join(line for line in server.lines if "packed cache:" in line)


@pytest.mark.parametrize("quantize", QUANTIZE)
def test_the_same_bits(tmp_path, quantize):
    cached = ["--quantize", quantize, "--packed-cache-dir", str(tmp_path / "cache")]
    plain, log = serve("--quantize", quantize)
    assert log == ""
    first, log = serve(*cached)
    assert first == plain and "wrote" in log and "matrices from" not in log
    [file] = (tmp_path / "cache").iterdir()
    assert file.name.startswith(DEMO.name) and file.suffix == ".packed"
    made = file.stat()
    second, log = serve(*cached)
    assert second == plain and "matrices from" in log and "wrote" not in log
    assert (file.stat().st_ino, file.stat().st_size) == (made.st_ino, made.st_size)


def test_two_servers_at_once(tmp_path):
    cached = ["--quantize", "q8_0", "--packed-cache-dir", str(tmp_path / "cache")]
    plain, _ = serve("--quantize", "q8_0")
    servers = [Server(*cached, wait=False) for _ in range(2)]
    try:
        for server in servers:
            assert server.url_found.wait(WAIT_S), server.output()
        assert [answer(server) for server in servers] == [plain, plain]
    finally:
        for server in servers:
            server.kill()
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert serve(*cached)[0] == plain


def test_a_broken_file_and_no_folder(tmp_path):
    cached = ["--quantize", "q4_0", "--packed-cache-dir", str(tmp_path / "cache")]
    plain, _ = serve(*cached)
    [file] = (tmp_path / "cache").iterdir()
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    seen, log = serve(*cached)
    assert seen == plain
    assert " W " in log and "checksum of" in log and "wanted" in log and "wrote" in log
    file.write_bytes(data[:1000])
    seen, log = serve(*cached)
    assert seen == plain and " W " in log and "wrote" in log
    seen, log = serve(*cached)
    assert seen == plain and " W " not in log and "matrices from" in log
    seen, log = serve("--quantize", "q4_0", "--packed-cache-dir", str(file))  # a file where the folder should be
    assert seen == plain and " W " in log and "cannot" in log
