#!/bin/busybox sh
# First process of a guest: load the modules, see the host's files read-only under a tmpfs, hand over to inside.py.
B=/bin/busybox
die() { echo "guest: $*"; $B poweroff -f; }
$B mount -t proc proc /proc; $B mount -t sysfs sys /sys; $B mount -t devtmpfs dev /dev
$B mkdir -p /dev/pts /dev/shm; $B mount -t devpts pts /dev/pts
while read module; do $B insmod /modules/$module || die "cannot load $module"; done < /modules/order
for word in $($B cat /proc/cmdline); do
	case $word in kvcast.python=*) python=${word#*=} ;; kvcast.inside=*) inside=${word#*=} ;; kvcast.run=*) run=${word#*=} ;; esac
done
$B mount -t tmpfs tmpfs /over; $B mkdir -p /over/upper /over/work
$B mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro host /host || die "no host files"
$B mount -t overlay overlay -o lowerdir=/host,upperdir=/over/upper,workdir=/over/work /root || die "no overlay"
for directory in proc sys dev; do $B mkdir -p /root/$directory; $B mount --move /$directory /root/$directory; done
for directory in run dev/shm; do $B mkdir -p /root/$directory; $B mount -t tmpfs tmpfs /root/$directory; done
$B mkdir -p "/root$run"
$B mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=none,rw run "/root$run" || die "no run directory"
exec $B switch_root /root "$python" "$inside"
