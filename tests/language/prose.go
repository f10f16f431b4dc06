// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"strings"
)

// A marker is a pattern of private or translated English.
type marker struct {
	name    string
	pattern *regexp.Regexp
	// allowed matches the uses that are good English. The marker does not see that its pattern allowed matches.
	allowed *regexp.Regexp
}

var markers = []marker{
	{
		"what/who as a noun",
		regexp.MustCompile(`(?:^|[,;:(]\s*|\b(?:of|for|by|to|than|as|is|are|was|and|or|but|with|from|on|in|at|that|until|against|beside|gets?|has|have|takes?|gives?|keeps?|does|do|had|counts?|charges?|holds?)\s+)(?:[Ww]ho|[Ww]hoever|[Ww]hatever|[Ww]hat)\b`),
		regexp.MustCompile(`\b(?:[Ww]ho|[Ww]hoever|[Ww]hatever|[Ww]hat)( (?:to do|if|is new)\b)`),
	},
	{
		"Where X, Y",
		regexp.MustCompile(`(?:^|[:;] )(?:Where) [^?]*?,|, where\b`),
		regexp.MustCompile(`, where\b( the (?:file|directory)\b)`),
	},
	{"beside", regexp.MustCompile(`\b[Bb]esides?\b`), nil},
	{"nobody/somebody", regexp.MustCompile(`\b(?:[Nn]obody|[Ss]omebody)\b`), nil},
	{
		"held/holds",
		regexp.MustCompile(`\b(?:is|are|was|were|be|been) held\b|\bholds? (?:for|of|there|here|whatever|also|with|too)\b|\b[Ww]hat holds\b`),
		nil,
	},
	{
		"told/tells/said",
		regexp.MustCompile(`\b(?:is|are|was|were|be) (?:told|said|asked)\b|\btells? (?:it|that|of|what|which|whether|how)\b|\bsays (?:that|whether|so|which|what|how)\b`),
		nil,
	},
	{"of which/whose", regexp.MustCompile(`\b(?:of|for|in|by|on|from|behind|with|to) (?:which|whom)\b`), nil},
	{
		"is to/is meant/wants",
		regexp.MustCompile(`\b(?:is|are) (?:meant|to be|wanted)\b|\bwants? (?:it|a|the|also|at|to be|no)\b`),
		nil,
	},
	{
		"Nor/Of/Such first",
		regexp.MustCompile(`^(?:Nor|Of|Such|So (?:is|does|do|are|has)|Be it|As (?:do|does|is|are))\b`),
		nil,
	},
	{
		"another one, the former one",
		regexp.MustCompile(`\b(?:that one|this one|the one (?:that|of)|those (?:that|of|who|which)|one (?:that|who|which)|ones? there)\b`),
		nil,
	},
	{
		"thereafter words",
		regexp.MustCompile(`\b(?:thereby|therein|thereof|whereby|wherein|hereby|anew|lest|behold|ere|aught|naught|of its own accord)\b`),
		nil,
	},
}

// maxWords is the longest sentence without a marker.
const maxWords = 30

// findMarkers names the markers of a sentence.
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
	codeBlock  = regexp.MustCompile("(?s)```.*?```")
	linkTarget = regexp.MustCompile(`\]\([^)]*\)`)
	codeSpan   = regexp.MustCompile("`[^`]*`")
	tableCell  = regexp.MustCompile(`[ \t]*\|[ \t]*`)
	listItem   = regexp.MustCompile(`(?m)^[ \t]*(?:[-*+]|\d+\.)[ \t]+`)
	emptyLine  = regexp.MustCompile(`\n\s*\n`)
	stop       = regexp.MustCompile("[.!?] [A-Z`\"(*]")
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
