// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"cmp"
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
			if mine, err = HostlistContains(value, node); err != nil {
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

// gresWord is one entry of a list of GRES: a name, perhaps a type, a count, and in brackets its
// places. Slurm prints such lists in these forms:
//
//	shard:h200:30(IDX:0)                 held, 22.05
//	shard:h200:80(80/100,0/100,0/100)    held, 24.05 and later: held/all of each card
//	gpu:h200:2(IDX:0-1)                  held
//	vgpu:h200(CNT:60)                    held, without places
//	gpu:h200:4(S:0-1)                    Gres= of a node
//	gres:shard:h200:30, gres/shard=30    requested
var gresWord = regexp.MustCompile(`^(?:gres[:/])?([A-Za-z0-9_]+)(?::([^:=()]+))??(?:[:=](\d+))?(?:\(([^()]*)\))?$`)

// gres is one entry of such a list.
type gres struct {
	text       string
	name, kind string
	count      uint64
	where      string // "IDX:0", "80/100,0/100"; "CNT" without places
	err        error  // the entry, or its count, cannot be read
}

// listGRES reads a list. An entry without a count has the count 1 and an error.
func listGRES(list string) (entries []gres) {
	for _, text := range splitOutside(null(list)) {
		g := gres{text: text, name: text[:max(0, strings.IndexAny(text, ":=("))], count: 1}
		parts := gresWord.FindStringSubmatch(text)
		if parts == nil {
			g.err = fmt.Errorf("cannot read GRES=%q", clip(text))
			entries = append(entries, g)
			continue
		}
		g.name, g.kind, g.where = parts[1], parts[2], parts[4]
		digits := parts[3]
		if held, is := strings.CutPrefix(g.where, "CNT:"); is {
			g.kind, digits, g.where = cmp.Or(g.kind, digits), held, "CNT"
		}
		n, err := strconv.ParseUint(digits, 10, 32)
		switch {
		case digits == "":
			g.err = fmt.Errorf("cannot read GRES=%q", clip(text))
		case err != nil || n > mostShards:
			g.err = fmt.Errorf("cannot read the count of GRES=%q", clip(text))
		default:
			g.count = n
		}
		entries = append(entries, g)
	}
	return entries
}

// CountGRES returns the counts of gpu, shard and vgpu in a list, over all types.
func CountGRES(list string) map[string]uint64 {
	counts := map[string]uint64{}
	for _, g := range listGRES(list) {
		if g.name == "gpu" || g.name == "shard" || g.name == "vgpu" {
			counts[g.name] += g.count
		}
	}
	return counts
}

// readGRES reads the GRES= of one node.
func (f *JobFacts) readGRES(list string) error {
	for _, g := range listGRES(list) {
		err := g.err
		switch known := g.name == "shard" || g.name == "gpu" || g.name == "vgpu"; {
		case !known:
			continue
		case err != nil:
		case g.where == "CNT" && g.name != "vgpu":
			err = fmt.Errorf("GRES=%s names no card: want File= in gres.conf", clip(g.text))
		case g.where == "CNT":
			f.count(gpu.Share(g.count), g.kind)
		case g.name == "shard":
			err = f.addShards(gpu.Share(g.count), g.where)
		case g.name == "gpu":
			err = f.addWhole(g.where)
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
		if !found || err != nil || i >= maxIndex || n > mostShards {
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
