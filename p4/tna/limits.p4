// Segments that the orbit serves are not charged: however often a slot is asked for, it is cast once when it comes by. The
// limit of segments stands in a stage behind the one that knows the leader, and before the one that decides.

const bit<8> METER_RED = 3;

#define PACKET_METER             DirectMeter(MeterType_t.PACKETS)
#define READ_METER(meter, color) color = meter.execute()

#include "../include/limits.p4"
