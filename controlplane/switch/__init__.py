"""The switch as the control plane sees it: entries it shall have, entries it has, and how to get from one to the other.

One module per P4 control, of the same name, turns that control's entries into P4Runtime's and back.
"""
