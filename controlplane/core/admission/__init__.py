"""What goes into the switch, and where. Pure."""

from controlplane.core.admission.layout import Placed, SlotLayout
from controlplane.core.admission.policy import Admission, AdmissionPolicy, Candidate, Refusal
from controlplane.core.admission.slots import SlotAllocator, SlotRange

__all__ = ["Admission", "AdmissionPolicy", "Candidate", "Placed", "Refusal", "SlotAllocator", "SlotLayout", "SlotRange"]
