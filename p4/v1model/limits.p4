const bit<2> METER_RED = 2;

#define PACKET_METER             direct_meter<bit<2>>(MeterType.packets)
#define READ_METER(meter, color) meter.read(color)

#include "../include/limits.p4"
