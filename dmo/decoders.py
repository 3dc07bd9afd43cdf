"""From label scores to decisions, learned from the scores of training samples by models that have not seen them.

Every fit that has leave-one-out or out-of-fold scores of training samples learns from them the probability of each label
and the threshold above which it is given; no test sample is ever looked at. A decoder that is passed to an estimator,
`MultiViewRidge(decoder=PlugIn())`, decides besides how labels are ranked.
"""

from dmo.decide.decoders import Calibration, FittedDecoder, PlugIn, PooledCalibration, Scores, as_decoder

__all__ = ["Calibration", "FittedDecoder", "PlugIn", "PooledCalibration", "Scores", "as_decoder"]
