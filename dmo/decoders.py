"""Decoders that turn label scores into predicted labels, learned from out-of-fold or leave-one-out scores.

From the scores of training samples, a decoder learns the probability of each label and the threshold above which the
label is predicted. A decoder never uses test samples. A decoder that is passed to an estimator, such as
`MultiViewRidge(decoder=PlugIn())`, also determines how labels are ranked.
"""

from dmo.decide.decoders import Calibration, FittedDecoder, PlugIn, PooledCalibration, Scores, as_decoder

__all__ = ["Calibration", "FittedDecoder", "PlugIn", "PooledCalibration", "Scores", "as_decoder"]
