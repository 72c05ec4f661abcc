"""The registry of methods: adding one is a file beside this and a line here."""

from fedbasis.algorithms.apfl import APFL
from fedbasis.algorithms.base import Method
from fedbasis.algorithms.ditto import Ditto
from fedbasis.algorithms.fed_mtl import FedMTL
from fedbasis.algorithms.fedamp import FedAMP
from fedbasis.algorithms.fedavg import FedAvg
from fedbasis.algorithms.fedbasis import FedBasis
from fedbasis.algorithms.fedbn import FedBn
from fedbasis.algorithms.fedem import FedEM
from fedbasis.algorithms.fedfomo import FedFomo
from fedbasis.algorithms.fedper import FedPer
from fedbasis.algorithms.fedprox import FedProx
from fedbasis.algorithms.fedrep import FedRep
from fedbasis.algorithms.fedrod import FedRoD
from fedbasis.algorithms.ifca import IFCA
from fedbasis.algorithms.kmeans_k import KMeansK
from fedbasis.algorithms.knn_per import KNNPer
from fedbasis.algorithms.l2gd import L2GD
from fedbasis.algorithms.lg_fedavg import LgFedAvg
from fedbasis.algorithms.local import Local
from fedbasis.algorithms.pca_k import PCAK
from fedbasis.algorithms.per_fedavg import PerFedAvg
from fedbasis.algorithms.per_fedavg_hf import PerFedAvgHF
from fedbasis.algorithms.pfedgp import PFedGP
from fedbasis.algorithms.pfedhn import PFedHN
from fedbasis.algorithms.pfedme import PFedMe
from fedbasis.algorithms.scaffold import Scaffold

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        Local, FedAvg, FedProx, Scaffold, FedMTL, PerFedAvg, PerFedAvgHF, PFedMe, Ditto, APFL, L2GD, LgFedAvg, FedPer,
        FedRep, FedBn, PFedHN, KNNPer, PCAK, KMeansK, FedBasis, IFCA, FedEM, FedRoD, FedFomo, FedAMP, PFedGP,
    )
}  # fmt: skip
