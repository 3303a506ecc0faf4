// Command tun_writer answers requests (see ../../peers/__init__.py) with wireguard-go's own TUN
// device, which it creates in the namespace that it is started in.
//
//	tun_writer NAME MTU
//
// Modes are `create`, which only says that the device is there, and `wall` and `cpu`, of which
// either takes the time of one Write of the whole batch, merging and system calls included. `out`
// is how many frames that wrote, by the kernel's count, and `payload` how much of TCP was in them.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"

	"netstack-gro/benchmarks/harness"
)

const (
	offset   = 16    // device.MessageTransportOffsetContent
	capacity = 65535 // device.MaxMessageSize
	headers  = 128   // bytes of a packet that merging may change
)

type engine struct {
	device  tun.Device
	name    string
	clock   func() time.Duration
	packets [][]byte
	whole   [][]byte // the buffers that packets are decrypted in
	bufs    [][]byte
}

func wall() time.Duration { return time.Since(start) }

var start = time.Now()

func cpu() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		panic(err)
	}
	return time.Duration(now.Nano())
}

// Merge writes the batch. Before, and not timed, it puts back what the last time has changed.
func (e *engine) Merge() time.Duration {
	if e.clock == nil {
		return time.Millisecond
	}
	for i, packet := range e.packets {
		e.bufs[i] = e.whole[i][:offset+len(packet)]
		clear(e.bufs[i][:offset])
		copy(e.bufs[i][offset:], packet[:min(headers, len(packet))])
	}
	before := e.clock()
	_, err := e.device.Write(e.bufs, offset)
	taken := e.clock() - before
	if err != nil {
		panic(err)
	}
	return taken
}

func (e *engine) Outcome() (int, int) {
	packets, bytes := e.counters()
	e.Merge()
	after, more := e.counters()
	out := after - packets
	first := e.packets[0]
	return out, more - bytes - out*(len(first)-harness.Payload(first, len(first)))
}

// counters returns how many packets the kernel was given by way of the device, and their bytes.
func (e *engine) counters() (packets, bytes int) {
	file, err := os.Open("/proc/self/net/dev")
	if err != nil {
		panic(err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		name, numbers, _ := strings.Cut(strings.TrimSpace(lines.Text()), ":")
		if name == e.name {
			if _, err := fmt.Sscan(numbers, &bytes, &packets); err != nil {
				panic(err)
			}
			return
		}
	}
	panic(e.name + " is gone")
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: tun_writer NAME MTU")
		os.Exit(2)
	}
	mtu, err := strconv.Atoi(os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	device, err := tun.CreateTUN(os.Args[1], mtu)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	go func() { // it waits for somebody to listen
		for range device.Events() {
		}
	}()
	harness.Serve(func(packets [][]byte, mode string) (harness.Engine, error) {
		clock, known := map[string]func() time.Duration{"create": nil, "wall": wall, "cpu": cpu}[mode]
		if !known {
			return nil, fmt.Errorf("%q is no mode", mode)
		}
		e := &engine{device: device, name: os.Args[1], clock: clock, packets: packets}
		for _, packet := range packets {
			buf := make([]byte, capacity)
			copy(buf[offset:], packet)
			e.whole = append(e.whole, buf)
		}
		e.bufs = make([][]byte, len(packets))
		return e, nil
	})
}
