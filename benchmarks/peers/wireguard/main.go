// Command wireguard answers requests (see ../__init__.py) with the merging of wireguard-go's TUN
// writer.
//
// There is one mode, `verified`: checksums are verified when a merge is at stake, and payloads
// are copied behind the first segment. Measured is what Write does before it writes: handleGRO,
// and emptying its tables. Both are private, and reached by their names.
package main

import (
	"fmt"
	"time"
	"unsafe"

	_ "golang.zx2c4.com/wireguard/tun"

	"netstack-gro/benchmarks/harness"
)

const (
	offset   = 16    // device.MessageTransportOffsetContent
	capacity = 65535 // device.MaxMessageSize
	batch    = 128   // conn.IdealBatchSize, which the tables are made for
	headers  = 128   // bytes of a packet that merging may change
)

type table unsafe.Pointer

//go:linkname newTCP golang.zx2c4.com/wireguard/tun.newTCPGROTable
func newTCP() table

//go:linkname newUDP golang.zx2c4.com/wireguard/tun.newUDPGROTable
func newUDP() table

//go:linkname resetTCP golang.zx2c4.com/wireguard/tun.(*tcpGROTable).reset
func resetTCP(table)

//go:linkname resetUDP golang.zx2c4.com/wireguard/tun.(*udpGROTable).reset
func resetUDP(table)

//go:linkname handleGRO golang.zx2c4.com/wireguard/tun.handleGRO
func handleGRO(bufs [][]byte, offset int, tcp, udp table, canUDP bool, toWrite *[]int) error

type engine struct {
	tcp, udp table
	packets  [][]byte
	whole    [][]byte // the buffers that packets are received in
	bufs     [][]byte
	toWrite  []int
}

func (e *engine) restore() {
	for i, packet := range e.packets {
		e.bufs[i] = e.whole[i][:offset+len(packet)]
		clear(e.bufs[i][:offset])
		copy(e.bufs[i][offset:], packet[:min(headers, len(packet))])
	}
	e.toWrite = e.toWrite[:0]
}

func (e *engine) Merge() time.Duration {
	e.restore()
	start := time.Now()
	err := handleGRO(e.bufs, offset, e.tcp, e.udp, true, &e.toWrite)
	resetTCP(e.tcp)
	resetUDP(e.udp)
	taken := time.Since(start)
	if err != nil {
		panic(err)
	}
	return taken
}

func (e *engine) Outcome() (int, int) {
	e.Merge()
	payload := 0
	for _, i := range e.toWrite {
		packet := e.bufs[i][offset:]
		payload += harness.Payload(packet, len(packet))
	}
	return len(e.toWrite), payload
}

func prepare(packets [][]byte, mode string) (harness.Engine, error) {
	if mode != "verified" {
		return nil, fmt.Errorf("%q is no mode", mode)
	}
	if len(packets) > batch {
		return nil, fmt.Errorf("%d packets in a batch of at most %d", len(packets), batch)
	}
	e := &engine{tcp: newTCP(), udp: newUDP(), packets: packets}
	for _, packet := range packets {
		buf := make([]byte, capacity)
		copy(buf[offset:], packet)
		e.whole = append(e.whole, buf)
	}
	e.bufs = make([][]byte, len(packets))
	return e, nil
}

func main() { harness.Serve(prepare) }
