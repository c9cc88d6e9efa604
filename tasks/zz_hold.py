import  os
