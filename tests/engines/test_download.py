"""The precision of what a client receives."""

import pytest
import torch

from battery import RECIPE, clients, make, same
from fedbasis.engines.download import as_received, require_download, to_send
from fedbasis.engines.in_process import InProcess
from fedbasis.engines.simulation import Simulation
from fedbasis.tensors import compact
from fedbasis.tensors.params import State, nbytes
from pflbed.errors import InputError


def test_float32_is_sent_as_it_is() -> None:
    state: State = {"m": {"w": torch.randn(3)}}
    assert to_send(make("fedavg", RECIPE), state, "float32") is state


def test_bfloat16_halves_what_is_float32_and_nothing_else() -> None:
    state: State = {"m": {"w": torch.randn(4096, generator=torch.Generator().manual_seed(0)), "n": torch.tensor(3)}}
    sent = to_send(make("fedavg", RECIPE), state, "bfloat16")
    assert nbytes(state) - nbytes(sent) == 2 * 4096
    got = as_received(sent, {})["m"]
    assert torch.equal(got["w"], state["m"]["w"].bfloat16().float())
    assert torch.equal(got["n"], state["m"]["n"])


def test_compact_codes_the_bases() -> None:
    method = make("fedbasis-random", RECIPE)
    server = method.init(7)
    sent = to_send(method, server, "compact")
    assert compact.is_coded(sent)
    alike = method.serving.alike_models(server)
    assert alike is not None
    assert same(sent, compact.encode(server, alike, 4))
    assert as_received(sent, method.task.layout.shapes).keys() == server.keys()
    sent["compact/scales/basis_0"]["fc.weight"][0] = -1.0
    with pytest.raises(InputError, match="What the server sent must hold codes and scales"):
        as_received(sent, method.task.layout.shapes)


def test_methods_without_models_that_are_alike_are_refused() -> None:
    require_download(make("fedbasis", RECIPE), "compact")
    for download in ("float32", "bfloat16"):
        require_download(make("fedavg", RECIPE), download)
    with pytest.raises(InputError, match="several models that are alike, but FedAvg has none"):
        require_download(make("fedavg", RECIPE), "compact")


def test_what_all_clients_receive_is_rounded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []

    def count(*given: object) -> State:
        counted.append(given)
        return to_send(*given)  # type: ignore[arg-type]

    monkeypatch.setattr("fedbasis.engines.simulation.to_send", count)
    method, data = make("fedbasis-random", RECIPE), clients(3)
    engine, server = Simulation(InProcess(method), data, 7, download="compact"), method.init(7)
    for number in range(2):
        list(engine.map(server, list(data), number))
    assert len(counted) == 2
