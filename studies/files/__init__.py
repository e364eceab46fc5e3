"""The files of a study and the words in them; everything else finds and keeps its facts here.

`records` writes durably, `lock` lets one driver in, `outcomes` names how trials end, `directory` says where each file
lies, `board` adds a copy for TensorBoard. Imports nothing of the other folders.
"""
