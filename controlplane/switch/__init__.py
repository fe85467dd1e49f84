"""The switch as the control plane sees it: the entries it should have, those it has, and the way from one to the other.

One module per P4 control, of the same name, turns that control's entries into P4Runtime's and back.
"""
