"""Training by gradient methods, the reference for AMP."""

from amp_attention.erm._optimizers import OPTIMIZERS as OPTIMIZERS, minimise as minimise
from amp_attention.erm._train import TrainedWeights as TrainedWeights, tied_matrix as tied_matrix, train as train
from amp_attention.objective import training_objective as training_objective
