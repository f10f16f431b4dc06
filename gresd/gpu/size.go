// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
)

// Bytes is an amount of memory in bytes. JSON and the wire carry the number.
type Bytes uint64

// Units of memory: powers of 1024.
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
	TiB Bytes = 1 << 40
)

// units from the largest, so that String and Compact find the best one first.
var units = [...]struct {
	letter string
	size   Bytes
}{{"T", TiB}, {"G", GiB}, {"M", MiB}, {"K", KiB}}

// ParseBytes reads a size: a whole number, then nothing (bytes) or one of K, M,
// G, T, KiB, MiB, GiB, TiB in either case, powers of 1024. Everything else is
// refused: signs, spaces, leading zeros, decimals, "GB", more than 64 bits.
// "0" is a size. The error has the allowed values and an example; the caller adds
// the value.
func ParseBytes(s string) (Bytes, error) {
	digits := s[:len(s)-len(strings.TrimLeft(s, "0123456789"))]
	size, ok := unit(s[len(digits):])
	n, err := strconv.ParseUint(digits, 10, 64)
	high, low := bits.Mul64(n, uint64(size))
	switch {
	case !ok, digits == "", len(digits) > 1 && digits[0] == '0':
		return 0, errors.New("want a whole number, then K, M, G or T (powers of 1024), for example 8G")
	case err != nil, high != 0:
		return 0, errors.New("want a size below 16777216T, for example 80G")
	}
	return Bytes(low), nil
}

// unit returns the bytes of a suffix; "" is one byte.
func unit(suffix string) (Bytes, bool) {
	if suffix == "" {
		return 1, true
	}
	for _, u := range units {
		// The first byte alone: EqualFold takes the Kelvin sign for a K.
		if strings.EqualFold(suffix[:1], u.letter) && (len(suffix) == 1 || strings.EqualFold(suffix[1:], "iB")) {
			return u.size, true
		}
	}
	return 0, false
}

// String writes the size for people: "8 GiB", "1536 MiB". It is exact for
// every multiple of 1 MiB; other sizes get one decimal, or bytes below 1 KiB.
func (b Bytes) String() string {
	for _, u := range units {
		if b >= u.size && b%u.size == 0 && u.size >= MiB {
			return fmt.Sprintf("%d %siB", b/u.size, u.letter)
		}
	}
	for _, u := range units {
		if b >= u.size {
			if b%u.size == 0 {
				return fmt.Sprintf("%d %siB", b/u.size, u.letter)
			}
			return fmt.Sprintf("%.1f %siB", float64(b)/float64(u.size), u.letter)
		}
	}
	return fmt.Sprintf("%d B", uint64(b))
}

// Compact writes the size so that [ParseBytes] reads exactly the same amount:
// "8G", "1536M", "1000".
func (b Bytes) Compact() string {
	for _, u := range units {
		if b >= u.size && b%u.size == 0 {
			return fmt.Sprintf("%d%s", b/u.size, u.letter)
		}
	}
	return strconv.FormatUint(uint64(b), 10)
}

// Of returns how many hundredths of total b is, rounded up; above 100 when b is
// larger than total. A total of 0 gives 0.
func (b Bytes) Of(total Bytes) Percent {
	if total == 0 {
		return 0
	}
	high, low := bits.Mul64(uint64(b), 100)
	if high >= uint64(total) {
		return math.MaxUint32
	}
	quotient, rest := bits.Div64(high, low, uint64(total))
	if rest != 0 {
		quotient++
	}
	return Percent(min(quotient, math.MaxUint32))
}

// Percent is a whole number of hundredths.
type Percent uint32

// ParseCount reads a whole number from 1 to limit, without a sign or a leading
// zero.
func ParseCount(s string, limit uint32) (n uint32, ok bool) {
	if s == "" || s[0] < '1' || s[0] > '9' || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	number, err := strconv.ParseUint(s, 10, 32)
	return uint32(number), err == nil && uint32(number) <= limit
}

// Ranges returns the numbers of a list such as "0-2,5", in its order. ok is false if the text is no
// such list. It is also false for a number of most or above, and for more than most numbers.
func Ranges(list string, most int) (numbers []int, ok bool) {
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 31)
		to, err2 := strconv.ParseUint(last, 10, 31)
		if err != nil || err2 != nil || from > to || int(to) >= most || len(numbers)+int(to-from) >= most {
			return nil, false
		}
		for ; from <= to; from++ {
			numbers = append(numbers, int(from))
		}
	}
	return numbers, true
}
