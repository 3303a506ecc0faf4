// Command gvisor answers requests (see ../__init__.py) with gVisor's pkg/tcpip/stack/gro.
//
// A mode is two words: `trusted` (RXChecksumValidated is set) or `verified`, and what is measured
// beside Enqueue and Flush. With `prebuilt` nothing is: the PacketBuffers are made beforehand and
// released afterwards. With `built` taking memory for them, making and releasing them is measured
// too, as a link endpoint does it, but not the copying of the bytes, which stands for the read.
//
// One Flush takes only one packet from each bucket of the table (google/gvisor#14081), so it is
// called until nothing comes any more.
package main

import (
	"fmt"
	"strings"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/stack/gro"

	"netstack-gro/benchmarks/harness"
)

// sink is what packets are delivered to.
type sink struct {
	packets int
	payload int
	weigh   bool
}

func (s *sink) DeliverNetworkPacket(_ tcpip.NetworkProtocolNumber, pkt *stack.PacketBuffer) {
	s.packets++
	if s.weigh {
		data := pkt.Data().AsRange().ToSlice()
		s.payload += harness.Payload(data, len(data))
	}
}

func (*sink) DeliverLinkPacket(tcpip.NetworkProtocolNumber, *stack.PacketBuffer) {}

type engine struct {
	gro      gro.GRO
	sink     sink
	packets  [][]byte
	protocol tcpip.NetworkProtocolNumber
	trusted  bool
	built    bool
	views    []*buffer.View
	buffers  []*stack.PacketBuffer
}

func (e *engine) take() {
	for i, packet := range e.packets {
		e.views[i] = buffer.NewViewSize(len(packet))
	}
}

func (e *engine) fill() {
	for i, packet := range e.packets {
		copy(e.views[i].AsSlice(), packet)
	}
}

func (e *engine) wrap(i int) *stack.PacketBuffer {
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{
		Payload: buffer.MakeWithView(e.views[i]),
	})
	pkt.NetworkProtocolNumber = e.protocol
	pkt.RXChecksumValidated = e.trusted
	return pkt
}

func (e *engine) flush() {
	for before := -1; before != e.sink.packets; {
		before = e.sink.packets
		e.gro.Flush()
	}
}

func (e *engine) Merge() time.Duration {
	if e.built {
		return e.mergeBuilt()
	}
	e.take()
	e.fill()
	for i := range e.views {
		e.buffers[i] = e.wrap(i)
	}
	start := time.Now()
	for _, pkt := range e.buffers {
		e.gro.Enqueue(pkt)
	}
	e.flush()
	taken := time.Since(start)
	for _, pkt := range e.buffers {
		pkt.DecRef()
	}
	return taken
}

func (e *engine) mergeBuilt() time.Duration {
	start := time.Now()
	e.take()
	taken := time.Since(start)
	e.fill()
	start = time.Now()
	for i := range e.views {
		pkt := e.wrap(i)
		e.gro.Enqueue(pkt)
		pkt.DecRef()
	}
	e.flush()
	return taken + time.Since(start)
}

func (e *engine) Outcome() (int, int) {
	e.sink = sink{weigh: true}
	e.Merge()
	found := e.sink
	e.sink = sink{}
	return found.packets, found.payload
}

func prepare(packets [][]byte, mode string) (harness.Engine, error) {
	checksums, counted, _ := strings.Cut(mode, " ")
	if checksums != "trusted" && checksums != "verified" ||
		counted != "prebuilt" && counted != "built" {
		return nil, fmt.Errorf("%q is no mode", mode)
	}
	e := &engine{
		packets:  packets,
		protocol: header.IPv4ProtocolNumber,
		trusted:  checksums == "trusted",
		built:    counted == "built",
		views:    make([]*buffer.View, len(packets)),
		buffers:  make([]*stack.PacketBuffer, len(packets)),
	}
	if packets[0][0]>>4 == 6 {
		e.protocol = header.IPv6ProtocolNumber
	}
	e.gro.Init(true)
	e.gro.Dispatcher = &e.sink
	return e, nil
}

func main() { harness.Serve(prepare) }
