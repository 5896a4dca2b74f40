package waveinfer_test

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/iotest"

	"waveinfer"
)

func TestASavedSessionGoesOnWithTheSameTokens(t *testing.T) {
	m := openModel(t)
	s := reading(t, m, &waveinfer.SessionParams{Sampling: &waveinfer.SamplingParams{Temperature: 2, Seed: 3}})
	path := filepath.Join(t.TempDir(), "naïve 漢字.wis")
	succeed(t, s.Save(background, path))
	var stream bytes.Buffer
	succeed(t, s.SaveTo(background, &stream))
	size := must(s.SavedBytes())(t)
	if file := must(os.ReadFile(path))(t); !bytes.Equal(file, stream.Bytes()) || size != int64(len(file)) {
		t.Errorf("the file has %d bytes, the stream %d, announced were %d", len(file), stream.Len(), size)
	}
	want := written(t, s, 12)
	one := iotest.OneByteReader(bytes.NewReader(stream.Bytes()))
	for _, loaded := range []*waveinfer.Session{
		must(m.Load(background, path, nil))(t),
		must(m.LoadFrom(background, &stream, size, nil))(t),
		must(m.LoadFrom(background, one, size, nil))(t),
	} {
		if got := written(t, loaded, 12); !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		loaded.Close()
	}
}

func TestWhatALoadGivesMustBeAsSavedWhereItShapesWhatIsStored(t *testing.T) {
	m := openModel(t)
	path := filepath.Join(t.TempDir(), "session")
	succeed(t, reading(t, m, nil).Save(background, path))
	_, err := m.Load(background, path, &waveinfer.SessionParams{KVType: waveinfer.KVF32})
	wantError(t, err, waveinfer.ErrMismatch)
	greedy := must(m.Load(background, path, &waveinfer.SessionParams{
		Policy:   &waveinfer.PolicyParams{Budget: 0.5, LocalWindow: -1},
		Sampling: &waveinfer.SamplingParams{LogitsCallback: only(7)},
	}))(t)
	defer greedy.Close()
	if event := must(greedy.Decode(background))(t); event.Token != 7 {
		t.Errorf("took %d", event.Token)
	}
}

func TestDamagedFilesAreFormatErrors(t *testing.T) {
	m := openModel(t)
	var stream bytes.Buffer
	succeed(t, reading(t, m, nil).SaveTo(background, &stream))
	whole := stream.Bytes()
	numbers := random(t)
	for range 20 {
		broken := bytes.Clone(whole)
		broken[numbers.IntN(len(broken))] ^= byte(1 + numbers.IntN(255))
		loaded, err := m.LoadFrom(background, bytes.NewReader(broken), int64(len(broken)), nil)
		if err == nil {
			loaded.Close()
			t.Error("a damaged file was taken")
			continue
		}
		wantError(t, err)
	}
	cut := whole[:len(whole)/2]
	_, err := m.LoadFrom(background, bytes.NewReader(cut), int64(len(cut)), nil)
	wantError(t, err, waveinfer.ErrFormat)
	_, err = m.LoadFrom(background, bytes.NewReader(cut), int64(len(whole)), nil)
	wantError(t, err, waveinfer.ErrIO, io.ErrUnexpectedEOF)
	_, err = m.Load(background, filepath.Join(t.TempDir(), "absent"), nil)
	wantError(t, err, waveinfer.ErrIO, fs.ErrNotExist)
	wantError(t, reading(t, m, nil).Save(background, filepath.Join(t.TempDir(), "absent", "file")), waveinfer.ErrIO, fs.ErrNotExist)
}
