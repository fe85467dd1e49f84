"""The way to a switch: P4Runtime by finsy.

One module per P4 control, of the same name, turns that control's entries into P4Runtime's and back; `codec` and
`tofino` join them for one program each; `target` keeps the session with a switch.
"""
