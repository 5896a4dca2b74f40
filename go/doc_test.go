package waveinfer_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"testing"
)

func TestEverythingExportedIsDocumented(t *testing.T) {
	files := token.NewFileSet()
	missing := func(at ast.Node, name string) { t.Errorf("%s: %s", files.Position(at.Pos()), name) }
	for _, path := range sourceFiles(t) {
		file := must(parser.ParseFile(files, path, nil, parser.ParseComments))(t)
		for _, declared := range file.Decls {
			switch d := declared.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && d.Doc == nil && (d.Recv == nil || receiverIsExported(d)) {
					missing(d, d.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch s := spec.(type) {
					case *ast.TypeSpec:
						if s.Name.IsExported() && d.Doc == nil && s.Doc == nil {
							missing(s, s.Name.Name)
						}
					case *ast.ValueSpec:
						if s.Names[0].IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
							missing(s, s.Names[0].Name)
						}
					}
				}
			}
		}
	}
}

func receiverIsExported(d *ast.FuncDecl) bool {
	of := d.Recv.List[0].Type
	if pointer, ok := of.(*ast.StarExpr); ok {
		of = pointer.X
	}
	name, ok := of.(*ast.Ident)
	return ok && name.IsExported()
}
