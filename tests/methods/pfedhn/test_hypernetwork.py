"""The products of a hypernetwork's Jacobian, by hand."""

import torch

from fedbasis.methods.pfedhn.hypernetwork import pull_back


def test_the_products_in_one_dimension_by_hand() -> None:
    """theta = b + w (u v + c) with u = 2, c = 1, w = 3, v = 5 and a change of 10."""
    hyper = {"hidden_0.weight": torch.tensor([[2.0]]), "hidden_0.bias": torch.tensor([1.0])}
    hyper["output_0.weight"] = torch.tensor([[3.0]])
    u, c, w, v = pull_back(hyper, torch.tensor([5.0]), [torch.tensor([10.0])])
    assert [float(x) for x in (u, c, w, v)] == [10 * 3 * 5, 10 * 3, 10 * (2 * 5 + 1), 10 * 3 * 2]
