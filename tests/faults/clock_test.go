// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// The clock of a machine cannot be a test's to set, no namespace has one of its
// own (time namespaces are for the monotonic clocks), and a preloaded library does
// not reach Go programs, which call the vDSO. So the vDSO of single processes is
// changed while they run: there, the wall clock is another one from then on.

// errNoClock says that this machine's programs cannot be given another clock.
var errNoClock = errors.New("want x86-64 with a vDSO that can be written")

// stepClock moves the wall clock of a process by d from its real one.
func stepClock(pid int, d time.Duration) error {
	if runtime.GOARCH != "amd64" {
		return errNoClock
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return err
	}
	var begin, end int64
	for line := range strings.Lines(string(maps)) {
		if strings.HasSuffix(strings.TrimSpace(line), "[vdso]") {
			if _, err := fmt.Sscanf(line, "%x-%x", &begin, &end); err != nil {
				return err
			}
		}
	}
	if begin == 0 {
		return errNoClock
	}
	mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer mem.Close()
	image := make([]byte, end-begin)
	if _, err := mem.ReadAt(image, begin); err != nil {
		return err
	}
	vdso, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return fmt.Errorf("vDSO of %d: %w", pid, err)
	}
	symbols, err := vdso.DynamicSymbols()
	if err != nil {
		return fmt.Errorf("vDSO of %d: %w", pid, err)
	}
	changed := 0
	for _, s := range symbols {
		if code := clockCode(s.Name, d); code != nil {
			if s.Size < uint64(len(code)) {
				return fmt.Errorf("%s has %d bytes, want %d: %w", s.Name, s.Size, len(code), errNoClock)
			}
			if _, err := mem.WriteAt(code, begin+int64(s.Value)); err != nil {
				return errors.Join(errNoClock, err)
			}
			changed++
		}
	}
	if changed < 3 {
		return errNoClock
	}
	return nil
}

// clockCode is a function of the vDSO that asks the kernel and adds d, whole seconds.
func clockCode(name string, d time.Duration) []byte {
	const callGettime, callGettimeofday, callTime = 228, 96, 201
	seconds := binary.LittleEndian.AppendUint64([]byte{0x49, 0xb8}, uint64(int64(d/time.Second))) // mov r8, d
	call := func(n byte) []byte { return []byte{0xb8, n, 0, 0, 0, 0x0f, 0x05} }                   // mov eax, n; syscall
	var code []byte
	switch name {
	case "__vdso_clock_gettime": // only CLOCK_REALTIME, which is 0
		code = append(call(callGettime), 0x85, 0xff, 0x75, 13)    // test edi, edi; jne ret
		code = append(append(code, seconds...), 0x4c, 0x01, 0x06) // add [rsi], r8
	case "__vdso_gettimeofday":
		code = append(call(callGettimeofday), 0x48, 0x85, 0xff, 0x74, 13) // test rdi, rdi; je ret
		code = append(append(code, seconds...), 0x4c, 0x01, 0x07)         // add [rdi], r8
	case "__vdso_time":
		code = append(append(call(callTime), seconds...), 0x4c, 0x01, 0xc0) // add rax, r8
		code = append(code, 0x48, 0x85, 0xff, 0x74, 3, 0x48, 0x89, 0x07)    // test rdi, rdi; je ret; mov [rdi], rax
	default:
		return nil
	}
	return append(code, 0xc3) // ret
}
