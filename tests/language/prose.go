// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"strings"
)

var re = regexp.MustCompile

// A marker is a pattern of private or translated English. Uses that match allowed are good English.
type marker struct {
	name             string
	pattern, allowed *regexp.Regexp
}

var markers = []marker{
	{"what/who as a noun", re(`(?:^|[,;:(]\s*|\b(?:of|for|by|to|than|as|is|are|was|and|or|but|with|from|on|in|at|that|until|against|beside|gets?|has|have|takes?|gives?|keeps?|does|do|had|counts?|charges?|holds?)\s+)(?:[Ww]ho|[Ww]hoever|[Ww]hatever|[Ww]hat)\b`), re(`\b(?:[Ww]ho|[Ww]hoever|[Ww]hatever|[Ww]hat)( (?:to do|if|is new)\b)`)},
	{"Where X, Y", re(`(?:^|[:;] )(?:Where) [^?]*?,|, where\b`), re(`, where\b( the (?:file|directory)\b)`)},
	{"beside", re(`\b[Bb]esides?\b`), nil},
	{"nobody/somebody", re(`\b(?:[Nn]obody|[Ss]omebody)\b`), nil},
	{"held/holds", re(`\b(?:is|are|was|were|be|been) held\b|\bholds? (?:for|of|there|here|whatever|also|with|too)\b|\b[Ww]hat holds\b`), nil},
	{"told/tells/said", re(`\b(?:is|are|was|were|be) (?:told|said|asked)\b|\btells? (?:it|that|of|what|which|whether|how)\b|\bsays (?:that|whether|so|which|what|how)\b`), nil},
	{"of which/whose", re(`\b(?:of|for|in|by|on|from|behind|with|to) (?:which|whom)\b`), nil},
	{"is to/is meant/wants", re(`\b(?:is|are) (?:meant|to be|wanted)\b|\bwants? (?:it|a|the|also|at|to be|no)\b`), nil},
	{"Nor/Of/Such first", re(`^(?:Nor|Of|Such|So (?:is|does|do|are|has)|Be it|As (?:do|does|is|are))\b`), nil},
	{"another one, the former one", re(`\b(?:that one|this one|the one (?:that|of)|those (?:that|of|who|which)|one (?:that|who|which)|ones? there)\b`), nil},
	{"thereafter words", re(`\b(?:thereby|therein|thereof|whereby|wherein|hereby|anew|lest|behold|ere|aught|naught|of its own accord)\b`), nil},
}

// maxWords is the longest sentence without a marker.
const maxWords = 30

// findMarkers returns the names of the markers of a sentence.
func findMarkers(sentence string) (names []string) {
	for _, m := range markers {
		text := sentence
		if m.allowed != nil {
			text = m.allowed.ReplaceAllString(text, "X$1")
		}
		if !strings.HasSuffix(sentence, "?") && m.pattern.MatchString(text) {
			names = append(names, m.name)
		}
	}
	if len(strings.Fields(sentence)) > maxWords {
		names = append(names, "over 30 words")
	}
	return names
}

var (
	codeBlock  = re("(?s)```.*?```")
	linkTarget = re(`\]\([^)]*\)`)
	codeSpan   = re("`[^`]*`")
	tableCell  = re(`[ \t]*\|[ \t]*`)
	listItem   = re(`(?m)^[ \t]*(?:[-*+]|\d+\.)[ \t]+`)
	emptyLine  = re(`\n\s*\n`)
	stop       = re("[.!?] [A-Z`\"(*]")
)

// prose returns a document's text without code, headings and the targets of links.
func prose(text string) string {
	var lines []string
	for line := range strings.SplitSeq(codeBlock.ReplaceAllString(text, ""), "\n") {
		code := strings.HasPrefix(line, "    ") || strings.HasPrefix(line, "\t")
		if !code && !strings.HasPrefix(line, "<!--") && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	text = linkTarget.ReplaceAllString(strings.Join(lines, "\n"), "]")
	text = codeSpan.ReplaceAllString(text, "X")
	return tableCell.ReplaceAllString(text, "\n\n")
}

// sentences splits a text. It leaves out sentences of fewer than five words.
func sentences(text string) (all []string) {
	add := func(sentence string) {
		if sentence = strings.Trim(sentence, " *-.#>"); len(strings.Fields(sentence)) >= 5 {
			all = append(all, sentence)
		}
	}
	for _, paragraph := range emptyLine.Split(listItem.ReplaceAllString(text, "\n\n"), -1) {
		paragraph = strings.Join(strings.Fields(paragraph), " ")
		for {
			at := stop.FindStringIndex(paragraph)
			if at == nil {
				break
			}
			add(paragraph[:at[0]+1])
			paragraph = paragraph[at[0]+2:]
		}
		add(paragraph)
	}
	return all
}
