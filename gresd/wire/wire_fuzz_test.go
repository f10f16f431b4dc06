// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// FuzzReadRequest gives gresd a connection on which anything comes, cut
// anywhere: it reads line by line, and never more than it is prepared for.
func FuzzReadRequest(f *testing.F) {
	f.Add([]byte(grantLine+"\n"+grantLine+"\n"), false)
	f.Add([]byte(grantLine), true)
	f.Add([]byte("\n\n{\"op\":\"ping\"}\n"), true)
	f.Add([]byte("{\"op\":\"ping\"}\r\n\x00{\"op\":\"jobs\"}\n"), false)
	f.Add([]byte(strings.Repeat("[", MaxRequest+10)), false)
	f.Add([]byte("{\""+strings.Repeat("\xca", 4000)+"\":1}\n"), true)
	f.Add([]byte(`{"op":"set","job_id":1,"cores":101}`+"\n"+`{"op":"ping","op":"jobs"}`+"\n"), false)
	f.Fuzz(func(t *testing.T, stream []byte, slow bool) {
		var source io.Reader = bytes.NewReader(stream)
		if slow {
			source = iotest.OneByteReader(source)
		}
		r := bufio.NewReaderSize(source, 16)
		for lines := 0; ; lines++ {
			req, err := ReadRequest(r)
			if lines > len(stream) {
				t.Fatal("more lines than bytes")
			}
			switch {
			case err == nil:
				if req.check() != nil {
					t.Fatalf("accepted %+v", req)
				}
			case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
				// As of JSON too: a line that ends within its object.
				if _, more := r.ReadByte(); errors.Is(more, io.EOF) {
					return
				}
				if err := r.UnreadByte(); err != nil {
					t.Fatal(err)
				}
			case errors.Is(err, ErrTooLong):
				if len(stream) < MaxRequest {
					t.Fatalf("too long, of %d bytes", len(stream))
				}
				return
			case len(err.Error()) > 4096:
				t.Fatalf("a message of %d bytes", len(err.Error()))
			}
		}
	})
}

// FuzzReadReply: what a client accepts, it can write again.
func FuzzReadReply(f *testing.F) {
	for _, s := range []string{
		`{"ok":true,"result":"granted","pid":7}`, `{"ok":false,"kind":"user","message":"no"}`, `{}`, `null`, `[]`,
		`{"ok":true,"status":{"cards":[{"gpu_uuid":"GPU-1","memory_bytes":18446744073709551615,"future":1}],"started":"2026-08-01T00:00:00Z"}}`,
		`{"ok":true,"jobs":[{"job_id":7,"cards":[{"memory_used_bytes":null,"gpu_seconds":1e308}]}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		rep, err := ReadReply(bufio.NewReader(bytes.NewReader(append(bytes.ReplaceAll(line, []byte("\n"), nil), '\n'))))
		if err != nil {
			return
		}
		var first, second bytes.Buffer
		if err := WriteReply(&first, rep); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		again, err := ReadReply(bufio.NewReader(bytes.NewReader(first.Bytes())))
		if err == nil {
			err = WriteReply(&second, again)
		}
		if err != nil || !bytes.Equal(first.Bytes(), second.Bytes()) {
			t.Fatalf("%v: %s became %s", err, first.Bytes(), second.Bytes())
		}
	})
}
