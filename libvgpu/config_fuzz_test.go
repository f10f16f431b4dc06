// SPDX-License-Identifier: Apache-2.0

package libvgpu

import (
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

var sizeForm = regexp.MustCompile(`\A([1-9][0-9]*)(?:([kmgtKMGT])(?:[iI][bB])?)?\z`)

// wantSize reads a size without any of the code under test.
func wantSize(s string) (uint64, bool) {
	part := sizeForm.FindStringSubmatch(s)
	if part == nil {
		return 0, false
	}
	n, _ := new(big.Int).SetString(part[1], 10)
	if part[2] != "" {
		power := strings.Index("kmgt", strings.ToLower(part[2])) + 1
		n.Mul(n, new(big.Int).Exp(big.NewInt(1024), big.NewInt(int64(power)), nil))
	}
	return n.Uint64(), n.IsUint64()
}

var sizes = []string{
	"1", "4096", "8G", "8g", "512m", "2TiB", "8gib", "16777215T", "18446744073709551615", "18446744073709551610",
	"17592186044415M", "17592186044416M", "18446744073709551616", "16777216T", "99999999999999999999999999G",
	"", "0", "0G", "00", "010m", "1.5g", "-1", "+1", " 4G", "4G ", "4 G", "4GB", "4Gi", "4GG", "4P", "0x10", "1e9",
	"4G\n", "4\u212a", "\u0664G", "4\xcb",
}

// FuzzParseSize holds the C reader of sizes, which tasks run without gresd, and
// the Go reader, which gresd and the wrappers run, to one meaning: a limit must
// not depend on which of them read it. Zero alone divides them: for gresd it is
// a size that its callers refuse, in a variable it is no limit to be set.
func FuzzParseSize(f *testing.F) {
	for _, s := range sizes {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if strings.ContainsRune(s, 0) {
			return // no C string, and no variable, holds one
		}
		want, good := wantSize(s)
		if got, ok := parseSize(s); ok != good || good && got != want {
			t.Errorf("C: %q is %d, %v; want %d, %v", s, got, ok, want, good)
		}
		inGo, err := gpu.ParseBytes(s)
		if (err == nil && inGo != 0) != good || good && uint64(inGo) != want {
			t.Errorf("Go: %q is %d, %v; want %d, %v", s, inGo, err, want, good)
		}
	})
}

// wantLimits is what one card's variables mean; "" is one that is not set.
func wantLimits(all, own GrantCard, mem, sm string) (card GrantCard, bad int) {
	card = own
	card.MemLimit, card.Cores = all.MemLimit, all.Cores
	if mem != "" {
		n, good := wantSize(mem)
		if card.MemLimit = n; !good {
			card.MemLimit, bad = 1, bad+1
		}
	}
	if sm != "" {
		n, err := strconv.ParseUint(sm, 10, 8)
		switch {
		case sm == "0":
			card.Cores = 100
		case err == nil && n >= 1 && n <= 100 && sm == strconv.FormatUint(n, 10):
			card.Cores = uint32(n)
		default:
			card.Cores, bad = 1, bad+1
		}
	}
	card.Share = card.Cores
	return card, bad
}

// FuzzEnvironment: what cannot be read is counted, so that it is said, and
// gives the smallest limit, for just the cards that it was meant for.
func FuzzEnvironment(f *testing.F) {
	f.Add("8G", "512m", "30", "10", "", "", "true")
	f.Add("1.5g", "", "150", "", "default", "1", "false")
	f.Add("", "010m", "", "-1", "DISABLE", "0", "1")
	f.Add("-1", "8G", "0", "100", "disable", "", "0")
	f.Add("", "", "", "101", "force", "0x0", "yes")
	f.Add("18446744073709551616", "18446744073709551615", "1k", "00", "", "00", "TRUE")
	f.Add(" 4G", "4G ", " 30", "30%", "disabled", " 0", "")
	f.Fuzz(func(t *testing.T, mem, mem1, sm, sm1, policy, priority, paged string) {
		vars := []string{"PATH=/usr/bin", "CUDA_DEVICE_MEMORY_LIMIT_16=1", "XCUDA_DEVICE_SM_LIMIT=7"}
		for _, v := range [][2]string{
			{"CUDA_DEVICE_MEMORY_LIMIT", mem},
			{"CUDA_DEVICE_MEMORY_LIMIT_1", mem1},
			{"CUDA_DEVICE_SM_LIMIT", sm},
			{"CUDA_DEVICE_SM_LIMIT_1", sm1},
			{"GPU_CORE_UTILIZATION_POLICY", policy},
			{"CUDA_TASK_PRIORITY", priority},
			{"CUDA_OVERSUBSCRIBE", paged},
		} {
			if strings.ContainsRune(v[1], 0) {
				return
			}
			vars = append(vars, v[0]+"="+v[1])
		}
		frame := GrantCard{Mode: ModeHard, Priority: PrioNormal}
		if c := []byte(policy); len(c) == 7 && asciiLower(c) == "disable" {
			frame.Mode = ModeOff
		}
		if priority == "0" {
			frame.Priority = PrioHigh
		}
		badPaged := 0
		switch string(asciiLower([]byte(paged))) {
		case "true", "1":
			frame.MemPhysical = memOfCard
		case "", "false", "0":
		default:
			badPaged = 1
		}
		all, bad := wantLimits(GrantCard{Cores: 100}, frame, mem, sm)
		one, bad1 := wantLimits(all, frame, mem1, sm1)
		cards, gotBad, limited := envGrant(vars)
		if len(cards) != MaxCards || gotBad != bad+bad1+badPaged || limited != (mem+mem1+sm+sm1 != "") {
			t.Fatalf("%q: %d cards, %d values not read, limited %v; want %d not read", vars, len(cards), gotBad, limited, bad+bad1+badPaged)
		}
		for i, got := range cards {
			want := all
			if i == 1 {
				want = one
			}
			if got != want {
				t.Errorf("%q: card %d is %+v, want %+v", vars, i, got, want)
			}
		}
	})
}

// asciiLower knows no letters but ours: others must not pass for them.
func asciiLower(b []byte) string {
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// Each number has 16 neighbours at the edges of 64 bits, which a fuzzer finds late.
func TestSizesAtTheEdges(t *testing.T) {
	for power, unit := range []string{"", "K", "M", "G", "T"} {
		edge := new(big.Int).Lsh(big.NewInt(1), uint(64-10*power))
		for d := int64(-8); d < 8; d++ {
			s := fmt.Sprint(new(big.Int).Add(edge, big.NewInt(d))) + unit
			want, good := wantSize(s)
			if good != (d < 0) {
				t.Fatalf("the test itself: %s is %v", s, good)
			}
			got, ok := parseSize(s)
			inGo, err := gpu.ParseBytes(s)
			if ok != good || (err == nil) != good || good && (got != want || uint64(inGo) != want) {
				t.Errorf("%s: C %d, %v; Go %d, %v; want %d, %v", s, got, ok, inGo, err, want, good)
			}
		}
	}
}
