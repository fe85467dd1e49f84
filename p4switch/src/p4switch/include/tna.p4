// Declarations of the Tofino Native Architecture, first generation: what p4switch executes of it. A construct that is
// missing here is refused as not declared, one without an implementation as not supported.
#ifndef _TNA_P4_
#define _TNA_P4_

#include "core.p4"

#ifndef __TARGET_TOFINO__
#define __TARGET_TOFINO__ 1
#endif

match_kind {
    range,
    selector,
    atcam_partition_index
}

error {
    CounterRange,
    Timeout,
    PhvOwner,
    MultiWrite,
    IbufOverflow,
    IbufUnderflow
}

// ------------------------------------------------------------------ numbers

#define PORT_ID_WIDTH            9
#define MULTICAST_GROUP_ID_WIDTH 16
#define QUEUE_ID_WIDTH           5
#define MIRROR_TYPE_WIDTH        3
#define MIRROR_ID_WIDTH          10
#define RESUBMIT_TYPE_WIDTH      3
#define DIGEST_TYPE_WIDTH        3
#define REPLICATION_ID_WIDTH     16
#define L1_EXCLUSION_ID_WIDTH    16
#define L2_EXCLUSION_ID_WIDTH    9

typedef bit<PORT_ID_WIDTH>            PortId_t;
typedef bit<MULTICAST_GROUP_ID_WIDTH> MulticastGroupId_t;
typedef bit<QUEUE_ID_WIDTH>           QueueId_t;
typedef bit<MIRROR_TYPE_WIDTH>        MirrorType_t;
typedef bit<MIRROR_ID_WIDTH>          MirrorId_t;
typedef bit<RESUBMIT_TYPE_WIDTH>      ResubmitType_t;
typedef bit<DIGEST_TYPE_WIDTH>        DigestType_t;
typedef bit<REPLICATION_ID_WIDTH>     ReplicationId_t;
typedef bit<L1_EXCLUSION_ID_WIDTH>    L1ExclusionId_t;
typedef bit<L2_EXCLUSION_ID_WIDTH>    L2ExclusionId_t;
typedef error                         ParserError_t;

// Bits of port metadata behind the intrinsic metadata of a packet at ingress. The runtime leaves them zero.
@noWarn("unused")
const bit<32> PORT_METADATA_SIZE = 32w64;

// parser_err: one bit an error.
@noWarn("unused") const bit<16> PARSER_ERROR_OK           = 0x0000;
@noWarn("unused") const bit<16> PARSER_ERROR_NO_MATCH     = 0x0001;
@noWarn("unused") const bit<16> PARSER_ERROR_PARTIAL_HDR  = 0x0002;
@noWarn("unused") const bit<16> PARSER_ERROR_CTR_RANGE    = 0x0004;
@noWarn("unused") const bit<16> PARSER_ERROR_TIMEOUT_USER = 0x0008;
@noWarn("unused") const bit<16> PARSER_ERROR_TIMEOUT_HW   = 0x0010;
@noWarn("unused") const bit<16> PARSER_ERROR_SRC_EXT      = 0x0020;
@noWarn("unused") const bit<16> PARSER_ERROR_DST_CONT     = 0x0040;
@noWarn("unused") const bit<16> PARSER_ERROR_PHV_OWNER    = 0x0080;
@noWarn("unused") const bit<16> PARSER_ERROR_MULTIWRITE   = 0x0100;
@noWarn("unused") const bit<16> PARSER_ERROR_ARAM_MBE     = 0x0400;
@noWarn("unused") const bit<16> PARSER_ERROR_FCS          = 0x0800;

enum CounterType_t { PACKETS, BYTES, PACKETS_AND_BYTES }
enum MeterType_t { PACKETS, BYTES }
enum SelectorMode_t { FAIR, RESILIENT }
enum HashAlgorithm_t { IDENTITY, RANDOM, XOR8, XOR16, XOR32, CRC8, CRC16, CRC32, CRC64, CUSTOM }
enum bit<8> MeterColor_t { GREEN = 0, YELLOW = 1, RED = 3 }

// ------------------------------------------------------------------ intrinsic metadata

// In front of every packet at ingress; what lies between it and the frame is the port metadata.
header ingress_intrinsic_metadata_t {
    bit<1>   resubmit_flag;
    @padding bit<1> _pad1;
    bit<2>   packet_version;
    @padding bit<3> _pad2;
    PortId_t ingress_port;
    bit<48>  ingress_mac_tstamp;        // ns
}

struct ingress_intrinsic_metadata_from_parser_t {
    bit<48> global_tstamp;              // ns
    bit<32> global_ver;
    bit<16> parser_err;
}

struct ingress_intrinsic_metadata_for_deparser_t {
    bit<3>         drop_ctl;            // bit 0: neither unicast nor multicast
    DigestType_t   digest_type;
    ResubmitType_t resubmit_type;
    MirrorType_t   mirror_type;
}

// Requests to the traffic manager. A packet has a unicast copy when ucast_egress_port names a port, and a copy for each
// replica of either group.
struct ingress_intrinsic_metadata_for_tm_t {
    PortId_t           ucast_egress_port;
    bit<1>             bypass_egress;
    bit<1>             deflect_on_drop;
    bit<3>             ingress_cos;
    QueueId_t          qid;
    bit<3>             icos_for_copy_to_cpu;
    bit<1>             copy_to_cpu;
    bit<2>             packet_color;
    bit<1>             disable_ucast_cutthru;
    bit<1>             enable_mcast_cutthru;
    MulticastGroupId_t mcast_grp_a;
    MulticastGroupId_t mcast_grp_b;
    bit<13>            level1_mcast_hash;
    bit<13>            level2_mcast_hash;
    L1ExclusionId_t    level1_exclusion_id;
    L2ExclusionId_t    level2_exclusion_id;
    bit<16>            rid;
}

// In front of every packet at egress.
header egress_intrinsic_metadata_t {
    @padding bit<7> _pad0;
    PortId_t  egress_port;
    @padding bit<5> _pad1;
    bit<19>   enq_qdepth;
    @padding bit<6> _pad2;
    bit<2>    enq_congest_stat;
    @padding bit<14> _pad3;
    bit<18>   enq_tstamp;               // ns
    @padding bit<5> _pad4;
    bit<19>   deq_qdepth;
    @padding bit<6> _pad5;
    bit<2>    deq_congest_stat;
    bit<8>    app_pool_congest_stat;
    @padding bit<14> _pad6;
    bit<18>   deq_timedelta;
    bit<16>   egress_rid;
    @padding bit<7> _pad7;
    bit<1>    egress_rid_first;
    @padding bit<3> _pad8;
    QueueId_t egress_qid;
    @padding bit<5> _pad9;
    bit<3>    egress_cos;
    @padding bit<7> _pad10;
    bit<1>    deflection_flag;
    bit<16>   pkt_length;               // bytes with the FCS
}

struct egress_intrinsic_metadata_from_parser_t {
    bit<48> global_tstamp;
    bit<32> global_ver;
    bit<16> parser_err;
}

struct egress_intrinsic_metadata_for_deparser_t {
    bit<3>       drop_ctl;
    MirrorType_t mirror_type;
    bit<1>       coalesce_flush;
    bit<7>       coalesce_length;
}

struct egress_intrinsic_metadata_for_output_port_t {
    bit<1> capture_tstamp_on_tx;
    bit<1> update_delay_on_tx;
}

// ------------------------------------------------------------------ externs

extern T min<T>(in T t1, in T t2);
extern T max<T>(in T t1, in T t2);

extern Hash<W> {
    Hash(HashAlgorithm_t algo);
    W get<D>(in D data);
}

extern Random<W> {
    Random();
    W get();
}

extern Counter<W, I> {
    Counter(bit<32> size, CounterType_t type);
    void count(in I index);
}

extern DirectCounter<W> {
    DirectCounter(CounterType_t type);
    void count();
}

extern Register<T, I> {
    Register(bit<32> size);
    Register(bit<32> size, T initial_value);
    T read(in I index);
    void write(in I index, in T value);
}

// A number that only register actions see, and that the control plane may change.
extern RegisterParam<T> {
    RegisterParam(T initial_value);
    T read();
}

// What a stateful ALU does with one cell of a register: reads it, runs `apply`, writes it back, gives `rv`.
extern RegisterAction<T, I, U> {
    RegisterAction(Register<_, _> reg);
    U execute(in I index);
    @synchronous(execute)
    abstract void apply(inout T value, @optional out U rv);
    // One of 1, 2, 4, 8: neither condition holds, the first alone, the second alone, both.
    U predicate(@optional in bool cmplo, @optional in bool cmphi);
}

extern Checksum {
    Checksum();
    void add<T>(in T data);
    void subtract<T>(in T data);
    bool verify();
    void subtract_all_and_deposit<T>(out T residual);
    bit<16> get();
    bit<16> update<T>(in T data, @optional in bool zeros_as_ones);
}

extern Digest<T> {
    Digest();
    Digest(DigestType_t digest_type);
    void pack(in T data);
}

// A copy of the packet as it arrived, with a header of the program's in front, to what the session says.
extern Mirror {
    Mirror();
    Mirror(MirrorType_t mirror_type);
    void emit(in MirrorId_t session_id);
    void emit<T>(in MirrorId_t session_id, in T hdr);
}

extern Resubmit {
    Resubmit();
    Resubmit(ResubmitType_t resubmit_type);
    void emit();
    void emit<T>(in T hdr);
}

extern Meter<I> {
    Meter(bit<32> size, MeterType_t type);
    bit<8> execute(in I index);
    bit<8> execute(in I index, in MeterColor_t color);
    bit<8> execute(in I index, in MeterColor_t color, in bit<32> adjust_byte_count);
}

extern DirectMeter {
    DirectMeter(MeterType_t type);
    bit<8> execute();
    bit<8> execute(in MeterColor_t color);
    bit<8> execute(in MeterColor_t color, in bit<32> adjust_byte_count);
}

extern ActionProfile {
    ActionProfile(bit<32> size);
}

extern ActionSelector {
    ActionSelector(bit<32> size, Hash<_> hash, SelectorMode_t mode);
    ActionSelector(ActionProfile action_profile, Hash<_> hash, SelectorMode_t mode, bit<32> max_group_size, bit<32> num_groups);
}

// An 8-bit number that a parser counts with; it begins at zero for each packet.
extern ParserCounter {
    ParserCounter();
    void set<T>(in T value);
    void set<T>(in T field, in bit<8> max, in bit<8> rotate, in bit<3> mask, in bit<8> add);
    bool is_zero();
    bool is_negative();
    void increment(in bit<8> value);
    void decrement(in bit<8> value);
}

extern bit<32> sizeInBits<H>(in H h);
extern bit<32> sizeInBytes<H>(in H h);
extern T port_metadata_unpack<T>(packet_in pkt);

// ------------------------------------------------------------------ blocks

parser IngressParserT<H, M>(
    packet_in pkt, out H hdr, out M ig_md,
    @optional out ingress_intrinsic_metadata_t ig_intr_md,
    @optional out ingress_intrinsic_metadata_for_tm_t ig_intr_md_for_tm,
    @optional out ingress_intrinsic_metadata_from_parser_t ig_intr_md_from_prsr);

control IngressT<H, M>(
    inout H hdr, inout M ig_md,
    @optional in ingress_intrinsic_metadata_t ig_intr_md,
    @optional in ingress_intrinsic_metadata_from_parser_t ig_intr_md_from_prsr,
    @optional inout ingress_intrinsic_metadata_for_deparser_t ig_intr_md_for_dprsr,
    @optional inout ingress_intrinsic_metadata_for_tm_t ig_intr_md_for_tm);

control IngressDeparserT<H, M>(
    packet_out pkt, inout H hdr, in M metadata,
    @optional in ingress_intrinsic_metadata_for_deparser_t ig_intr_md_for_dprsr,
    @optional in ingress_intrinsic_metadata_t ig_intr_md);

parser EgressParserT<H, M>(
    packet_in pkt, out H hdr, out M eg_md,
    @optional out egress_intrinsic_metadata_t eg_intr_md,
    @optional out egress_intrinsic_metadata_from_parser_t eg_intr_md_from_prsr,
    @optional out egress_intrinsic_metadata_for_deparser_t eg_intr_md_for_dprsr);

control EgressT<H, M>(
    inout H hdr, inout M eg_md,
    @optional in egress_intrinsic_metadata_t eg_intr_md,
    @optional in egress_intrinsic_metadata_from_parser_t eg_intr_md_from_prsr,
    @optional inout egress_intrinsic_metadata_for_deparser_t eg_intr_md_for_dprsr,
    @optional inout egress_intrinsic_metadata_for_output_port_t eg_intr_md_for_oport);

control EgressDeparserT<H, M>(
    packet_out pkt, inout H hdr, in M metadata,
    @optional in egress_intrinsic_metadata_for_deparser_t eg_intr_md_for_dprsr,
    @optional in egress_intrinsic_metadata_t eg_intr_md,
    @optional in egress_intrinsic_metadata_from_parser_t eg_intr_md_from_prsr);

package Pipeline<IH, IM, EH, EM>(
    IngressParserT<IH, IM> ingress_parser, IngressT<IH, IM> ingress, IngressDeparserT<IH, IM> ingress_deparser,
    EgressParserT<EH, EM> egress_parser, EgressT<EH, EM> egress, EgressDeparserT<EH, EM> egress_deparser);

package Switch<IH0, IM0, EH0, EM0, IH1, IM1, EH1, EM1, IH2, IM2, EH2, EM2, IH3, IM3, EH3, EM3>(
    Pipeline<IH0, IM0, EH0, EM0> pipe0,
    @optional Pipeline<IH1, IM1, EH1, EM1> pipe1,
    @optional Pipeline<IH2, IM2, EH2, EM2> pipe2,
    @optional Pipeline<IH3, IM3, EH3, EM3> pipe3);

#endif
