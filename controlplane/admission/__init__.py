"""What goes into the switch, and where. Pure."""

from controlplane.admission.layout import Placed, SlotLayout
from controlplane.admission.policy import Admission, AdmissionPolicy, Candidate, Refusal
from controlplane.admission.slots import SlotAllocator, SlotRange

__all__ = ["Admission", "AdmissionPolicy", "Candidate", "Placed", "Refusal", "SlotAllocator", "SlotLayout", "SlotRange"]
