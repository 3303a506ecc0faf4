// Package harness is the answering side of the requests described in ../__init__.py, for engines
// in Go.
package harness

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

const (
	warm = 1.0 // of the time asked for
	away = 10  // a batch this many times the shortest one was off the CPU: not counted
)

// Engine is an engine with a batch before it.
type Engine interface {
	// Merge takes the batch, and puts everything back as it was afterwards; it returns how long
	// the part of it took that is to be measured.
	Merge() time.Duration
	// Outcome merges once more and returns how many packets came out, and the bytes of TCP
	// payload in them.
	Outcome() (packets, payload int)
}

// Serve answers requests until the input ends. prepare is given packets and a mode.
func Serve(prepare func(packets [][]byte, mode string) (Engine, error)) {
	runtime.LockOSThread()
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		if err := answer(input.Text(), prepare); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[0], err)
			os.Exit(1)
		}
	}
}

// Payload is the number of bytes of TCP payload in a packet of which this is the start.
func Payload(start []byte, length int) int {
	network := 20
	if start[0]>>4 == 6 {
		network = 40
	}
	return length - network - int(start[network+12]>>4)*4
}

func answer(line string, prepare func([][]byte, string) (Engine, error)) error {
	request := strings.Split(line, "\t")
	if len(request) != 3 {
		return fmt.Errorf("not understood: %q", line)
	}
	seconds, err := strconv.ParseFloat(request[2], 64)
	if err != nil {
		return err
	}
	packets, err := read(request[0])
	if err != nil {
		return err
	}
	engine, err := prepare(packets, request[1])
	if err != nil {
		return err
	}
	out, payload := engine.Outcome()
	nanoseconds := measure(engine, seconds) / float64(len(packets))
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"ns": nanoseconds, "out": out, "payload": payload,
	})
}

// measure returns the nanoseconds of one batch: the mean of those that kept the CPU.
func measure(engine Engine, seconds float64) float64 {
	want := time.Duration(seconds * float64(time.Second))
	for spent := time.Duration(0); spent < time.Duration(warm*float64(want)); {
		spent += engine.Merge()
	}
	var samples []time.Duration
	own := overhead()
	least := want
	for spent := time.Duration(0); len(samples) == 0 || spent < want; {
		taken := engine.Merge() - own
		samples = append(samples, taken)
		spent += taken
		least = min(least, taken)
	}
	var sum, kept time.Duration
	for _, taken := range samples {
		if taken <= away*least {
			sum += taken
			kept++
		}
	}
	return float64(sum) / float64(kept)
}

// overhead is how long it takes to take the time.
func overhead() time.Duration {
	least := time.Second
	for range 1000 {
		start := time.Now()
		least = min(least, time.Since(start))
	}
	return least
}

func read(path string) ([][]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if len(data) < 4 {
		return nil, fmt.Errorf("%s is no batch", path)
	}
	count := int(binary.LittleEndian.Uint32(data))
	at := 4 + 4*count
	packets := make([][]byte, count)
	for i := range packets {
		if 8+4*i > len(data) {
			return nil, fmt.Errorf("%s ends early", path)
		}
		length := int(binary.LittleEndian.Uint32(data[4+4*i:]))
		if at+length > len(data) {
			return nil, fmt.Errorf("%s ends early", path)
		}
		packets[i] = data[at : at+length]
		at += length
	}
	return packets, nil
}
