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
						if !s.Name.IsExported() {
							continue
						}
						if d.Doc == nil && s.Doc == nil {
							missing(s, s.Name.Name)
						}
						for _, part := range partsOf(s) {
							for _, name := range part.Names {
								if name.IsExported() && part.Doc == nil && part.Comment == nil {
									missing(name, s.Name.Name+"."+name.Name)
								}
							}
						}
					case *ast.ValueSpec:
						for _, name := range s.Names {
							if name.IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
								missing(name, name.Name)
							}
						}
					}
				}
			}
		}
	}
}

// partsOf are the fields of a struct, or the methods of an interface.
func partsOf(s *ast.TypeSpec) []*ast.Field {
	switch of := s.Type.(type) {
	case *ast.StructType:
		return of.Fields.List
	case *ast.InterfaceType:
		return of.Methods.List
	}
	return nil
}

func receiverIsExported(d *ast.FuncDecl) bool {
	of := d.Recv.List[0].Type
	if pointer, ok := of.(*ast.StarExpr); ok {
		of = pointer.X
	}
	name, ok := of.(*ast.Ident)
	return ok && name.IsExported()
}
