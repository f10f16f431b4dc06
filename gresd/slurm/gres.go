// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// readAllocations reads the words "Nodes=n[1-2] CPU_IDs=… Mem=… GRES=…": one
// group for nodes with the same allocation. A node in two groups is an error.
func (f *JobFacts) readAllocations(words []string, node string) error {
	mine, seen := false, false
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "Nodes":
			var err error
			if mine, err = inHostlist(value, node); err != nil {
				return err
			}
			if mine && seen {
				return errForged
			}
			seen = seen || mine
		case "GRES":
			if !mine {
				continue
			}
			if err := f.readGRES(null(value)); err != nil {
				return err
			}
			mine = false
		}
	}
	return nil
}

// gresWord is one entry of GRES=: a name, perhaps a type, a count, and in
// brackets where it is.
var gresWord = regexp.MustCompile(`^([A-Za-z0-9_]+)(?::([^:()]+))?:(\d+)\(([^()]*)\)$`)

// countWord is an entry without places: "vgpu(CNT:80)", "vgpu:type(CNT:80)".
var countWord = regexp.MustCompile(`^([A-Za-z0-9_]+)(?::([^()]+))?\(CNT:(\d+)\)$`)

// readGRES reads the GRES= of one node, such as
//
//	shard:h200:30(IDX:0)                    22.05
//	shard:h200:80(80/100,0/100,0/100)       24.05 and later: held/all, by card
//	gpu:h200:2(IDX:0-1)
//	vgpu(CNT:80)
//	vgpu:a100(CNT:20),vgpu:h200(CNT:60)
func (f *JobFacts) readGRES(list string) error {
	for _, word := range splitOutside(list) {
		if parts := countWord.FindStringSubmatch(word); parts != nil {
			n, err := count(parts[3], word)
			if err != nil {
				return err
			}
			switch parts[1] {
			case "vgpu":
				f.count(n, parts[2])
			case "shard", "gpu":
				return fmt.Errorf("GRES=%s names no card: want File= in gres.conf", clip(word))
			}
			continue
		}
		parts := gresWord.FindStringSubmatch(word)
		name := word[:max(0, strings.IndexAny(word, ":("))]
		if parts == nil && (name == "shard" || name == "gpu" || name == "vgpu") {
			return fmt.Errorf("cannot read GRES=%q", clip(word))
		}
		if parts == nil {
			continue
		}
		n, err := count(parts[3], word)
		if err == nil && name == "shard" {
			err = f.addShards(n, parts[4])
		} else if err == nil && name == "gpu" {
			err = f.addWhole(parts[4])
		}
		if err != nil {
			return err
		}
	}
	slices.Sort(f.WholeCards)
	return nil
}

// count adds to the count of gres/vgpu; cardType is "" where it has none.
func (f *JobFacts) count(n gpu.Share, cardType string) {
	f.Counted += n
	if i, known := slices.BinarySearch(f.CountedTypes, cardType); cardType != "" && n != 0 && !known {
		f.CountedTypes = slices.Insert(f.CountedTypes, i, cardType)
	}
}

func count(digits, word string) (gpu.Share, error) {
	n, err := strconv.ParseUint(digits, 10, 32)
	if err != nil || n > mostShards {
		return 0, fmt.Errorf("cannot read the count of GRES=%q", clip(word))
	}
	return gpu.Share(n), nil
}

// splitOutside splits at commas that are not in brackets.
func splitOutside(list string) []string {
	var words []string
	depth, start := 0, 0
	for i := range len(list) {
		switch list[i] {
		case '(', '[':
			depth++
		case ')', ']':
			depth--
		case ',':
			if depth == 0 {
				words = append(words, list[start:i])
				start = i + 1
			}
		}
	}
	if start < len(list) {
		words = append(words, list[start:])
	}
	return words
}

func (f *JobFacts) addShards(total gpu.Share, where string) error {
	if f.Units == nil {
		f.Units = map[int]gpu.Share{}
	}
	list, old := strings.CutPrefix(where, "IDX:")
	if old {
		return f.addShardsAt(total, list)
	}
	var sum gpu.Share
	for i, pair := range strings.Split(where, ",") {
		held, _, found := strings.Cut(pair, "/")
		n, err := strconv.ParseUint(held, 10, 32)
		if !found || err != nil {
			return fmt.Errorf("cannot read the shards of each card in %q", clip(where))
		}
		if i >= maxIndex || n > mostShards {
			return fmt.Errorf("cannot read the shards of each card in %q", clip(where))
		}
		if n != 0 {
			f.Units[i] += gpu.Share(n)
			sum += gpu.Share(n)
		}
	}
	if sum != total {
		return fmt.Errorf("GRES=shard:%d(%s): the cards hold %d in sum", total, clip(where), sum)
	}
	return nil
}

// addShardsAt reads the older form, which tells the cards but only the sum.
func (f *JobFacts) addShardsAt(total gpu.Share, list string) error {
	cards, err := indexes(list)
	switch {
	case err != nil:
		return err
	case len(cards) == 1:
		f.Units[cards[0]] += total
		return nil
	case total == gpu.FullCard*gpu.Share(len(cards)):
		for _, i := range cards {
			f.Units[i] += gpu.FullCard
		}
		return nil
	}
	return fmt.Errorf("%d shards on cards %s: this Slurm does not tell how they are split", total, list)
}

func (f *JobFacts) addWhole(where string) error {
	list, found := strings.CutPrefix(where, "IDX:")
	if !found {
		return fmt.Errorf("cannot read the cards in %q", clip(where))
	}
	cards, err := indexes(list)
	f.WholeCards = append(f.WholeCards, cards...)
	return err
}

const (
	// maxIndex bounds lists: no node has more cards.
	maxIndex = 1024
	// mostShards bounds counts, so that no sum of them wraps: a card has 100.
	mostShards = maxIndex * uint64(gpu.FullCard)
)

// indexes reads "0-1,3"; "" and "N/A" are none.
func indexes(list string) ([]int, error) {
	if null(list) == "" {
		return nil, nil
	}
	all, ok := gpu.Ranges(list, maxIndex)
	if !ok {
		return nil, fmt.Errorf("cannot read the card indexes %q", clip(list))
	}
	return all, nil
}
