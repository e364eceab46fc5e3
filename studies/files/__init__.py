"""The files of a study and the words in them: the truth that a driver, its workers and readers share.

Lowest first: `records` writes durably, `lock` lets one driver in, `outcomes` names how trials end, `decisions` is the
log of the rungs, `directory` says where each file lies and what stands in it; `board` is a copy for TensorBoard.
Imports none of the other folders.
"""
